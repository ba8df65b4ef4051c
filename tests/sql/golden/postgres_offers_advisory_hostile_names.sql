-- offer (limit, full_keys, avoided, ids, group)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  select c."User Id" as id,
         (c.xmin::text || c.ctid::text)::text as token,
         false as expired,
         c."a""b" as key,
         c."group" as its_group,
         c."headers" as headers,
         c."priority" as priority,
         c."%%(id)s" as due,
         c."pay%%load" as body,
         (least(coalesce(c."attempt", 0), 2147483646) + 1)::integer as attempt,
         c."a""b"::text as lane_key
    from "My Schema"."or""der %%s" as c
   where c."group" = %(group)s
     and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock))
     and (c."a""b" is null or c."a""b"::text <> all (%(full_keys)s::text[]))
     and c."User Id" <> all (%(avoided)s::bigint[])
     and c."User Id" = any(%(ids)s::bigint[])
   order by c."priority", c."%%(id)s" nulls first, c."User Id"
   limit %(limit)s
)
select id,
       token::text,
       attempt::bigint,
       expired is true,
       key,
       lane_key,
       its_group::text,
       headers::text,
       body::text
  from claimed
 order by priority, due nulls first, claimed.id;

-- take (id, token, group)
with clock as materialized (
  select clock_timestamp() as now
)
select 1
  from "My Schema"."or""der %%s" as c
 where c."User Id" = %(id)s::bigint
   and (c.xmin::text || c.ctid::text) = %(token)s
   and c."group" = %(group)s
   and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock))
   for no key update nowait;

-- free_keys (limit, page, full_keys, avoided, busy, group)
with clock as materialized (
  select clock_timestamp() as now
), seen as materialized (
  select c."User Id" as id, (coalesce(c."User Id"::text, '') || '-' || coalesce(c."a""b"::text, '')) collate "C" as key
    from "My Schema"."or""der %%s" as c
   where c."group" = %(group)s
     and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock))
     and (c."a""b" is null or c."a""b"::text <> all (%(full_keys)s::text[]))
     and c."User Id" <> all (%(avoided)s::bigint[])
     and (coalesce(c."User Id"::text, '') || '-' || coalesce(c."a""b"::text, '')) collate "C" <> all (%(busy)s::text[])
   order by c."priority", c."%%(id)s" nulls first, c."User Id"
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
select hashtextextended((coalesce(c."User Id"::text, '') || '-' || coalesce(c."a""b"::text, '')) collate "C", 0)
  from "My Schema"."or""der %%s" as c
 where c."User Id" = %(id)s::bigint;

-- stamped (id)
select (t.xmin::text || t.ctid::text)
  from "My Schema"."or""der %%s" as t
 where t."User Id" = %(id)s::bigint;

-- fate (id, token)
select case when (t.xmin::text || t.ctid::text) = %(token)s then 'HELD'
            else 'FREE' end
  from "My Schema"."or""der %%s" as t
 where t."User Id" = %(id)s::bigint
   for no key update nowait;

-- dead (id)
select 1
  from "dead" as t
 where t."User Id" = %(id)s::bigint;
