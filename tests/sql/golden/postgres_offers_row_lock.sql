-- offer (limit, full_keys, avoided)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  select c."id" as id,
         (c.xmin::text || c.ctid::text)::text as token,
         false as expired,
         c."partition_key" as key,
         c."group" as its_group,
         c."headers" as headers,
         c."priority" as priority,
         c."retry_after" as due,
         c."payload" as body,
         (least(coalesce(c."attempt", 0), 2147483646) + 1)::integer as attempt,
         c."partition_key"::text as lane_key
    from "app"."jobs" as c
   where (c."retry_after" is null or c."retry_after" <= (select now from clock))
     and (c."partition_key" is null or c."partition_key"::text <> all (%(full_keys)s::text[]))
     and c."id" <> all (%(avoided)s::bigint[])
   order by c."priority", c."retry_after" nulls first, c."id"
   limit %(limit)s
     for no key update skip locked
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

-- take (id, token)
with clock as materialized (
  select clock_timestamp() as now
)
select 1
  from "app"."jobs" as c
 where c."id" = %(id)s::bigint
   and (c.xmin::text || c.ctid::text) = %(token)s
   and (c."retry_after" is null or c."retry_after" <= (select now from clock))
   for no key update nowait;

-- stamped (id)
select (t.xmin::text || t.ctid::text)
  from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- fate (id, token)
select case when (t.xmin::text || t.ctid::text) = %(token)s then 'HELD'
            else 'FREE' end
  from "app"."jobs" as t
 where t."id" = %(id)s::bigint
   for no key update nowait;

-- dead (id)
select 1
  from "app"."dead" as t
 where t."id" = %(id)s::bigint;
