-- lock_key (limit, full_keys, avoided, busy, group)
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
  update "My Schema"."or""der %%s" as t
     set "attempt" = least(coalesce(t."attempt", 0), 2147483646) + 1
   where t."User Id" = any (array(
           select c."User Id"
             from "My Schema"."or""der %%s" as c
            where c."User Id" = %(id)s::bigint
              and c."group" = %(group)s
              and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock))
              and (coalesce(c."User Id"::text, '') || '-' || coalesce(c."a""b"::text, '')) collate "C" = %(key)s
              for no key update skip locked))
  returning t."User Id" as id,
            ''::text as token,
            false as expired,
            t."a""b" as key,
            t."group" as its_group,
            t."headers" as headers,
            t."priority" as priority,
            t."%%(id)s" as due,
            t."pay%%load" as body,
            t."attempt" as attempt,
            t."a""b"::text as lane_key
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
  from claimed;

-- ack (id)
delete from "My Schema"."or""der %%s" as t
 where t."User Id" = %(id)s::bigint;

-- drop (id)
delete from "My Schema"."or""der %%s" as t
 where t."User Id" = %(id)s::bigint;

-- retry (id, delay, attempt, reason)
update "My Schema"."or""der %%s" as t
   set "%%(id)s" = coalesce(clock_timestamp() + make_interval(secs => %(delay)s::float8), t."%%(id)s"),
       "attempt" = %(attempt)s,
       "last_error" = coalesce(%(reason)s::text, t."last_error")
 where t."User Id" = %(id)s::bigint;

-- snooze (id, delay, attempt)
update "My Schema"."or""der %%s" as t
   set "%%(id)s" = coalesce(clock_timestamp() + make_interval(secs => %(delay)s::float8), t."%%(id)s"),
       "attempt" = %(attempt)s
 where t."User Id" = %(id)s::bigint;

-- bury (id, attempt, reason)
with gone as (
  delete from "My Schema"."or""der %%s" as t
   where t."User Id" = %(id)s::bigint
  returning *
)
insert into "dead" ("User Id", "pay%%load", "headers", "group", "a""b", "priority", "%%(id)s", "attempt", "locked_until", "last_error")
overriding system value
select gone."User Id", gone."pay%%load", gone."headers", gone."group", gone."a""b", gone."priority", gone."%%(id)s", %(attempt)s, gone."locked_until", coalesce(%(reason)s::text, gone."last_error")
  from gone;

-- release (id, attempt)
with written as (
  update "My Schema"."or""der %%s" as t
     set "attempt" = %(attempt)s
   where t."User Id" = %(id)s::bigint
     and coalesce(t."attempt", 0) <> %(attempt)s
)
select t."User Id" from "My Schema"."or""der %%s" as t
 where t."User Id" = %(id)s::bigint;

-- recount (id, attempt, reason)
update "My Schema"."or""der %%s" as t
   set "attempt" = %(attempt)s,
       "last_error" = coalesce(%(reason)s::text, t."last_error")
 where t."User Id" = %(id)s::bigint;
