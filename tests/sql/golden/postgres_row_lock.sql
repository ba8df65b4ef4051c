-- begin ()
begin isolation level repeatable read;

-- claim (limit, full_keys, avoided)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  select c."id" as id,
         ''::text as token,
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

-- take_again (id)
with clock as materialized (
  select clock_timestamp() as now
)
select from "app"."jobs" as c
 where c."id" = %(id)s::bigint
   and (c."retry_after" is null or c."retry_after" <= (select now from clock))
   for no key update skip locked;

-- ack (id)
delete from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- drop (id)
delete from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- retry (id, delay, attempt, reason)
update "app"."jobs" as t
   set "retry_after" = coalesce(clock_timestamp() + make_interval(secs => %(delay)s::float8), t."retry_after"),
       "attempt" = %(attempt)s,
       "last_error" = coalesce(%(reason)s::text, t."last_error")
 where t."id" = %(id)s::bigint;

-- snooze (id, delay, attempt)
update "app"."jobs" as t
   set "retry_after" = coalesce(clock_timestamp() + make_interval(secs => %(delay)s::float8), t."retry_after"),
       "attempt" = %(attempt)s
 where t."id" = %(id)s::bigint;

-- bury (id, attempt, reason)
with gone as (
  delete from "app"."jobs" as t
   where t."id" = %(id)s::bigint
  returning *
)
insert into "app"."dead" ("id", "payload", "headers", "group", "partition_key", "priority", "retry_after", "attempt", "locked_until", "last_error")
overriding system value
select gone."id", gone."payload", gone."headers", gone."group", gone."partition_key", gone."priority", gone."retry_after", %(attempt)s, gone."locked_until", coalesce(%(reason)s::text, gone."last_error")
  from gone;

-- release (id, attempt)
with written as (
  update "app"."jobs" as t
     set "attempt" = %(attempt)s
   where t."id" = %(id)s::bigint
     and coalesce(t."attempt", 0) <> %(attempt)s
)
select t."id" from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- recount (id, attempt, reason)
update "app"."jobs" as t
   set "attempt" = %(attempt)s,
       "last_error" = coalesce(%(reason)s::text, t."last_error")
 where t."id" = %(id)s::bigint;
