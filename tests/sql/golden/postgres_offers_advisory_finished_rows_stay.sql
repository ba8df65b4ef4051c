-- offer (limit, avoided, ids)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  select c."id" as id,
         (c.xmin::text || c.ctid::text)::text as token,
         false as expired,
         (least(coalesce(c."attempt", 0), 2147483646) + 1)::integer as attempt,
         c."id" as c1,
         (least(coalesce(c."attempt", 0), 2147483646) + 1)::integer as c2,
         c."processed_at" as c3
    from "app"."jobs" as c
   where c."processed_at" is null
     and c."id" <> all (%(avoided)s::bigint[])
     and c."id" = any(%(ids)s::bigint[])
   order by c."id"
   limit %(limit)s
)
select id,
       token::text,
       attempt::bigint,
       expired is true,
       null,
       null,
       null,
       null,
       null,
       c1,
       c2,
       c3
  from claimed
 order by claimed.id;

-- take (id, token)
with clock as materialized (
  select clock_timestamp() as now
)
select 1
  from "app"."jobs" as c
 where c."id" = %(id)s::bigint
   and (c.xmin::text || c.ctid::text) = %(token)s
   and c."processed_at" is null
   for no key update nowait;

-- free_keys (limit, page, avoided, busy)
with clock as materialized (
  select clock_timestamp() as now
), seen as materialized (
  select c."id" as id, (coalesce(c."id"::text, '')) collate "C" as key
    from "app"."jobs" as c
   where c."processed_at" is null
     and c."id" <> all (%(avoided)s::bigint[])
     and (coalesce(c."id"::text, '')) collate "C" <> all (%(busy)s::text[])
   order by c."id"
   limit %(page)s
), numbered as materialized (
  select id, key, row_number() over () as place from seen
), firsts as materialized (
  select n.id, n.key, n.place
    from numbered as n
   where not exists (select from numbered as e where e.key = n.key and e.place < n.place)
   order by n.place
), free as materialized (
  select key from firsts where pg_try_advisory_xact_lock(hashtextextended(key, 0)) limit %(limit)s
)
select firsts.id, firsts.key, free.key is not null, (select count(*) from seen)
  from firsts
  left join free on free.key = firsts.key
 order by firsts.place;

-- key_number (id)
select hashtextextended((coalesce(c."id"::text, '')) collate "C", 0)
  from "app"."jobs" as c
 where c."id" = %(id)s::bigint;

-- stamped (id)
select (t.xmin::text || t.ctid::text)
  from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- fate (id, token)
select case when t."processed_at" is not null then 'DONE'
            when (t.xmin::text || t.ctid::text) = %(token)s then 'HELD'
            else 'FREE' end
  from "app"."jobs" as t
 where t."id" = %(id)s::bigint
   for no key update nowait;
