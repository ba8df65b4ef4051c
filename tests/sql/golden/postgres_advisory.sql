-- lock_key (limit, avoided, busy, group)
with clock as materialized (
  select clock_timestamp() as now
), seen as materialized (
  select c."id" as id, (E'it''s 100%% \\ {' || 'x}' || ' ' || coalesce(c."partition_key"::text, '')) collate "C" as key
    from "app"."jobs" as c
   where c."group" = %(group)s
     and (c."retry_after" is null or c."retry_after" <= (select now from clock))
     and c."id" <> all (%(avoided)s::bigint[])
     and (E'it''s 100%% \\ {' || 'x}' || ' ' || coalesce(c."partition_key"::text, '')) collate "C" <> all (%(busy)s::text[])
   order by c."priority", c."retry_after" nulls first, c."id"
   limit %(limit)s
), numbered as materialized (
  select id, key, row_number() over () as place from seen
), firsts as materialized (
  select n.id, n.key
    from numbered as n
   where not exists (select from numbered as e where e.key = n.key and e.place < n.place)
   order by n.place
), locked as materialized (
  select id, key from firsts where pg_try_advisory_lock(hashtextextended(key, 0)) limit 1
)
select locked.id, locked.key,
       case when locked.key is null then array(select key from firsts) end,
       (select count(*) from seen)
  from (select) as always
  left join locked on true;

-- take (id, key, group)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  update "app"."jobs" as t
     set "attempt" = least(coalesce(t."attempt", 0), 2147483646) + 1
   where t."id" = any (array(
           select c."id"
             from "app"."jobs" as c
            where c."id" = %(id)s::bigint
              and c."group" = %(group)s
              and (c."retry_after" is null or c."retry_after" <= (select now from clock))
              and (E'it''s 100%% \\ {' || 'x}' || ' ' || coalesce(c."partition_key"::text, '')) collate "C" = %(key)s
              for no key update skip locked))
  returning t."id" as id,
            ''::text as token,
            false as expired,
            t."partition_key" as key,
            t."group" as its_group,
            t."headers" as headers,
            t."priority" as priority,
            t."retry_after" as due,
            t."payload" as body,
            t."attempt" as attempt
)
select id,
       token::text,
       attempt::bigint,
       expired is true,
       key,
       null,
       its_group::text,
       headers::text,
       body::text
  from claimed;

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

-- bury (id, attempt, reason, dead_group)
update "app"."jobs" as t
   set "group" = %(dead_group)s,
       "attempt" = %(attempt)s,
       "last_error" = coalesce(%(reason)s::text, t."last_error")
 where t."id" = %(id)s::bigint;

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
