-- claim (limit)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  update "app"."jobs" as t
     set "locked_until" = greatest((select now from clock) + interval '30.000000 seconds', case when t."locked_until" < '1900-01-01' then t."locked_until" + interval '365000 days' else t."locked_until" end + interval '0.000001 seconds')
   where t."id" = any (array(
           select c."id"
             from "app"."jobs" as c
            where (c."locked_until" is null or c."locked_until" <= (select now from clock))
            order by c."id"
            limit %(limit)s
              for no key update skip locked))
  returning t."id" as id,
            t."locked_until" as token,
            t."partition_key" as key,
            (case when t."partition_key"::text like '%%.%%' then rtrim(rtrim(t."partition_key"::text, '0'), '.') else t."partition_key"::text end) as lane_key,
            t."id" as c1,
            t."locked_until" as c2,
            t."partition_key" as c3
)
select id,
       token::text,
       1,
       false,
       key,
       lane_key,
       null,
       null,
       null,
       c1,
       c2,
       c3
  from claimed
 order by claimed.id;

-- claim, full lanes left out (limit, full_keys)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  update "app"."jobs" as t
     set "locked_until" = greatest((select now from clock) + interval '30.000000 seconds', case when t."locked_until" < '1900-01-01' then t."locked_until" + interval '365000 days' else t."locked_until" end + interval '0.000001 seconds')
   where t."id" = any (array(
           select c."id"
             from "app"."jobs" as c
            where (c."locked_until" is null or c."locked_until" <= (select now from clock))
              and (c."partition_key" is null or (case when c."partition_key"::text like '%%.%%' then rtrim(rtrim(c."partition_key"::text, '0'), '.') else c."partition_key"::text end) <> all (%(full_keys)s::text[]))
            order by c."id"
            limit %(limit)s
              for no key update skip locked))
  returning t."id" as id,
            t."locked_until" as token,
            t."partition_key" as key,
            (case when t."partition_key"::text like '%%.%%' then rtrim(rtrim(t."partition_key"::text, '0'), '.') else t."partition_key"::text end) as lane_key,
            t."id" as c1,
            t."locked_until" as c2,
            t."partition_key" as c3
)
select id,
       token::text,
       1,
       false,
       key,
       lane_key,
       null,
       null,
       null,
       c1,
       c2,
       c3
  from claimed
 order by claimed.id;

-- lease_end ()
select (clock_timestamp() + interval '30.000000 seconds')::timestamp with time zone::text;

-- extend (ids, token, new)
with extended as (
  update "app"."jobs" as e
     set "locked_until" = %(new)s::timestamp with time zone
   where e."id" = any (array(
           select t."id"
             from "app"."jobs" as t
            where t."id" = any (%(ids)s::bigint[]) and t."locked_until" = %(token)s::timestamp with time zone
              and t."locked_until" < %(new)s::timestamp with time zone
              for no key update skip locked))
  returning e."id" as id
)
select id, true as extended
  from extended
 union all
select t."id", false
  from "app"."jobs" as t
 where t."id" = any (%(ids)s::bigint[]) and t."locked_until" = %(token)s::timestamp with time zone
   and not exists (select from extended where extended.id = t."id");

-- ack (ids, token)
delete from "app"."jobs" as t
 where t."id" = any (%(ids)s::bigint[])
   and t."locked_until" = %(token)s::timestamp with time zone
returning t."id";

-- retry (id, token, delay)
update "app"."jobs" as t
   set "locked_until" = case when %(delay)s::float8 > 0
         then greatest(clock_timestamp() + make_interval(secs => %(delay)s::float8), t."locked_until" + interval '0.000001 seconds')
         else t."locked_until" - interval '365000 days' end
 where t."id" = %(id)s::bigint
   and t."locked_until" = %(token)s::timestamp with time zone;

-- snooze (id, token, delay)
update "app"."jobs" as t
   set "locked_until" = case when %(delay)s::float8 > 0
         then greatest(clock_timestamp() + make_interval(secs => %(delay)s::float8), t."locked_until" + interval '0.000001 seconds')
         else t."locked_until" - interval '365000 days' end
 where t."id" = %(id)s::bigint
   and t."locked_until" = %(token)s::timestamp with time zone;

-- release (ids, token)
update "app"."jobs" as t
   set "locked_until" = t."locked_until" - interval '365000 days'
 where t."id" = any (%(ids)s::bigint[])
   and t."locked_until" = %(token)s::timestamp with time zone
returning t."id";

-- look (ids)
select t."id", (t."locked_until" + interval '365000 days')::timestamp with time zone::text
  from "app"."jobs" as t
 where t."id" = any (%(ids)s::bigint[])
 order by t."id"
   for no key update;

-- backlog (ids)
select exists (select from "app"."jobs" as t),
       0,
       exists (select from "app"."jobs" as t where t."id" = any (%(ids)s::bigint[]));

-- waiting (limit)
with clock as materialized (
  select clock_timestamp() as now
), seen as (
  select null::timestamptz as due, false as later, coalesce(c."locked_until" > (select now from clock), false) as held
    from "app"."jobs" as c
   order by c."id"
   limit %(limit)s
), summed as (
  select count(*) as rows, count(*) filter (where later) as later, count(*) filter (where held) as held,
         count(*) filter (where not later and not held) as free, min(due) filter (where later) as first
    from seen
)
select rows, later, held, free, first::text,
       (extract(epoch from first) - extract(epoch from null::timestamptz))::float8,
       case when rows = 0 then null end
  from summed;
