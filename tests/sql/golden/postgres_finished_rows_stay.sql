-- claim (limit)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  update "app"."jobs" as t
     set "locked_until" = greatest((select now at time zone 'utc' from clock) + interval '2.500000 seconds', case when t."locked_until" < '1900-01-01' then t."locked_until" + interval '365000 days' else t."locked_until" end + interval '1.000000 seconds'),
         "attempt" = least(coalesce(t."attempt", 0), 2147483646) + 1
   where t."id" = any (array(
           select c."id"
             from "app"."jobs" as c
            where c."processed_at" is null
              and (c."retry_after" is null or c."retry_after" <= (select now at time zone 'utc' from clock))
              and (c."locked_until" is null or c."locked_until" <= (select now at time zone 'utc' from clock))
            order by c."retry_after" nulls first, c."id"
            limit %(limit)s
              for no key update skip locked))
  returning t."id" as id,
            t."locked_until" as token,
            t."attempt" as attempt,
            case when t."attempt" > 1 then (select o."locked_until" >= '1900-01-01' from "app"."jobs" as o where o."id" = t."id") end as expired,
            t."retry_after" as due,
            t."payload" as body
)
select id,
       token::text,
       attempt::bigint,
       expired is true,
       null,
       null,
       null,
       null,
       body::text
  from claimed
 order by due nulls first, claimed.id;

-- lease_end ()
select ((clock_timestamp() at time zone 'utc') + interval '2.500000 seconds')::timestamp(0) without time zone::text;

-- extend (ids, token, new)
with extended as (
  update "app"."jobs" as e
     set "locked_until" = %(new)s::timestamp(0) without time zone
   where e."id" = any (array(
           select t."id"
             from "app"."jobs" as t
            where t."id" = any (%(ids)s::bigint[]) and t."locked_until" = %(token)s::timestamp(0) without time zone
              and t."locked_until" < %(new)s::timestamp(0) without time zone
              for no key update skip locked))
  returning e."id" as id
)
select id, true as extended
  from extended
 union all
select t."id", false
  from "app"."jobs" as t
 where t."id" = any (%(ids)s::bigint[]) and t."locked_until" = %(token)s::timestamp(0) without time zone
   and not exists (select from extended where extended.id = t."id");

-- ack (ids, token)
update "app"."jobs" as t
   set "processed_at" = (clock_timestamp() at time zone 'utc')
 where t."id" = any (%(ids)s::bigint[])
   and t."locked_until" = %(token)s::timestamp(0) without time zone
returning t."id";

-- drop (id, token, reason)
update "app"."jobs" as t
   set "processed_at" = (clock_timestamp() at time zone 'utc'),
       "last_error" = coalesce(left(%(reason)s::text, 50), t."last_error")
 where t."id" = %(id)s::bigint
   and t."locked_until" = %(token)s::timestamp(0) without time zone;

-- retry (id, token, delay, reason)
update "app"."jobs" as t
   set "locked_until" = t."locked_until" - interval '365000 days',
       "retry_after" = coalesce((clock_timestamp() at time zone 'utc') + make_interval(secs => %(delay)s::float8) + interval '0.000500 seconds', t."retry_after"),
       "last_error" = coalesce(left(%(reason)s::text, 50), t."last_error")
 where t."id" = %(id)s::bigint
   and t."locked_until" = %(token)s::timestamp(0) without time zone;

-- snooze (id, token, delay, attempt)
update "app"."jobs" as t
   set "locked_until" = t."locked_until" - interval '365000 days',
       "retry_after" = coalesce((clock_timestamp() at time zone 'utc') + make_interval(secs => %(delay)s::float8) + interval '0.000500 seconds', t."retry_after"),
       "attempt" = %(attempt)s
 where t."id" = %(id)s::bigint
   and t."locked_until" = %(token)s::timestamp(0) without time zone;

-- release (ids, token, attempt)
update "app"."jobs" as t
   set "locked_until" = t."locked_until" - interval '365000 days',
       "attempt" = %(attempt)s
 where t."id" = any (%(ids)s::bigint[])
   and t."locked_until" = %(token)s::timestamp(0) without time zone
returning t."id";

-- recount (id, token, attempt, reason)
update "app"."jobs" as t
   set "attempt" = %(attempt)s,
       "last_error" = coalesce(left(%(reason)s::text, 50), t."last_error")
 where t."id" = %(id)s::bigint
   and t."locked_until" = %(token)s::timestamp(0) without time zone;

-- look (ids)
select t."id", (t."locked_until" + interval '365000 days')::timestamp(0) without time zone::text
  from "app"."jobs" as t
 where t."id" = any (%(ids)s::bigint[])
 order by t."id"
   for no key update;

-- backlog (ids)
select exists (select from "app"."jobs" as t where t."processed_at" is null and t."retry_after" is null)
       or exists (select from "app"."jobs" as t where t."processed_at" is null and t."retry_after" <= (select (clock_timestamp() at time zone 'utc'))),
       (select count(*) from (select from "app"."jobs" as t where t."processed_at" is null and t."retry_after" > (select (clock_timestamp() at time zone 'utc')) limit 100000) as later),
       exists (select from "app"."jobs" as t where t."processed_at" is null and t."id" = any (%(ids)s::bigint[]));

-- waiting (limit)
with clock as materialized (
  select clock_timestamp() as now
), seen as (
  select c."retry_after" as due, coalesce(c."retry_after" > (select now at time zone 'utc' from clock), false) as later, coalesce(c."locked_until" > (select now at time zone 'utc' from clock), false) as held
    from "app"."jobs" as c
   where c."processed_at" is null
   order by c."retry_after" nulls first, c."id"
   limit %(limit)s
), summed as (
  select count(*) as rows, count(*) filter (where later) as later, count(*) filter (where held) as held,
         count(*) filter (where not later and not held) as free, min(due) filter (where later) as first
    from seen
)
select rows, later, held, free, first::text,
       (extract(epoch from first) - extract(epoch from (select now at time zone 'utc' from clock)))::float8,
       case when rows = 0 then null end
  from summed;
