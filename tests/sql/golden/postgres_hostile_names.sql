-- claim (limit, group)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  update "My Schema"."or""der %%s" as t
     set "locked_until" = greatest((select now from clock) + interval '30.000000 seconds', case when t."locked_until" < '1900-01-01' then t."locked_until" + interval '365000 days' else t."locked_until" end + interval '0.000001 seconds'),
         "attempt" = least(coalesce(t."attempt", 0), 2147483646) + 1
   where t."User Id" = any (array(
           select c."User Id"
             from "My Schema"."or""der %%s" as c
            where c."group" = %(group)s
              and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock))
              and (c."locked_until" is null or c."locked_until" <= (select now from clock))
            order by c."priority", c."%%(id)s" nulls first, c."User Id"
            limit %(limit)s
              for no key update skip locked))
  returning t."User Id" as id,
            t."locked_until" as token,
            t."a""b" as key,
            t."group" as its_group,
            t."headers" as headers,
            t."attempt" as attempt,
            case when t."attempt" > 1 then (select o."locked_until" >= '1900-01-01' from "My Schema"."or""der %%s" as o where o."User Id" = t."User Id") end as expired,
            t."priority" as priority,
            t."%%(id)s" as due,
            t."pay%%load" as body,
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
  from claimed
 order by priority, due nulls first, claimed.id;

-- claim, full lanes left out (limit, full_keys, group)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  update "My Schema"."or""der %%s" as t
     set "locked_until" = greatest((select now from clock) + interval '30.000000 seconds', case when t."locked_until" < '1900-01-01' then t."locked_until" + interval '365000 days' else t."locked_until" end + interval '0.000001 seconds'),
         "attempt" = least(coalesce(t."attempt", 0), 2147483646) + 1
   where t."User Id" = any (array(
           select c."User Id"
             from "My Schema"."or""der %%s" as c
            where c."group" = %(group)s
              and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock))
              and (c."locked_until" is null or c."locked_until" <= (select now from clock))
              and (c."a""b" is null or c."a""b"::text <> all (%(full_keys)s::text[]))
            order by c."priority", c."%%(id)s" nulls first, c."User Id"
            limit %(limit)s
              for no key update skip locked))
  returning t."User Id" as id,
            t."locked_until" as token,
            t."a""b" as key,
            t."group" as its_group,
            t."headers" as headers,
            t."attempt" as attempt,
            case when t."attempt" > 1 then (select o."locked_until" >= '1900-01-01' from "My Schema"."or""der %%s" as o where o."User Id" = t."User Id") end as expired,
            t."priority" as priority,
            t."%%(id)s" as due,
            t."pay%%load" as body,
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
  from claimed
 order by priority, due nulls first, claimed.id;

-- lease_end ()
select (clock_timestamp() + interval '30.000000 seconds')::timestamp with time zone::text;

-- extend (ids, token, new)
with extended as (
  update "My Schema"."or""der %%s" as e
     set "locked_until" = %(new)s::timestamp with time zone
   where e."User Id" = any (array(
           select t."User Id"
             from "My Schema"."or""der %%s" as t
            where t."User Id" = any (%(ids)s::bigint[]) and t."locked_until" = %(token)s::timestamp with time zone
              and t."locked_until" < %(new)s::timestamp with time zone
              for no key update skip locked))
  returning e."User Id" as id
)
select id, true as extended
  from extended
 union all
select t."User Id", false
  from "My Schema"."or""der %%s" as t
 where t."User Id" = any (%(ids)s::bigint[]) and t."locked_until" = %(token)s::timestamp with time zone
   and not exists (select from extended where extended.id = t."User Id");

-- ack (ids, token)
delete from "My Schema"."or""der %%s" as t
 where t."User Id" = any (%(ids)s::bigint[])
   and t."locked_until" = %(token)s::timestamp with time zone
returning t."User Id";

-- retry (id, token, delay, reason)
update "My Schema"."or""der %%s" as t
   set "locked_until" = t."locked_until" - interval '365000 days',
       "%%(id)s" = coalesce(clock_timestamp() + make_interval(secs => %(delay)s::float8), t."%%(id)s"),
       "last_error" = coalesce(%(reason)s::text, t."last_error")
 where t."User Id" = %(id)s::bigint
   and t."locked_until" = %(token)s::timestamp with time zone;

-- snooze (id, token, delay, attempt)
update "My Schema"."or""der %%s" as t
   set "locked_until" = t."locked_until" - interval '365000 days',
       "%%(id)s" = coalesce(clock_timestamp() + make_interval(secs => %(delay)s::float8), t."%%(id)s"),
       "attempt" = %(attempt)s
 where t."User Id" = %(id)s::bigint
   and t."locked_until" = %(token)s::timestamp with time zone;

-- bury (id, token, reason)
with gone as (
  delete from "My Schema"."or""der %%s" as t
   where t."User Id" = %(id)s::bigint
   and t."locked_until" = %(token)s::timestamp with time zone
  returning *
)
insert into "dead" ("User Id", "pay%%load", "headers", "group", "a""b", "priority", "%%(id)s", "attempt", "locked_until", "last_error")
overriding system value
select gone."User Id", gone."pay%%load", gone."headers", gone."group", gone."a""b", gone."priority", gone."%%(id)s", gone."attempt", gone."locked_until" - interval '365000 days', coalesce(%(reason)s::text, gone."last_error")
  from gone;

-- release (ids, token, attempt)
update "My Schema"."or""der %%s" as t
   set "locked_until" = t."locked_until" - interval '365000 days',
       "attempt" = %(attempt)s
 where t."User Id" = any (%(ids)s::bigint[])
   and t."locked_until" = %(token)s::timestamp with time zone
returning t."User Id";

-- recount (id, token, attempt, reason)
update "My Schema"."or""der %%s" as t
   set "attempt" = %(attempt)s,
       "last_error" = coalesce(%(reason)s::text, t."last_error")
 where t."User Id" = %(id)s::bigint
   and t."locked_until" = %(token)s::timestamp with time zone;

-- look (ids)
select t."User Id", (t."locked_until" + interval '365000 days')::timestamp with time zone::text
  from "My Schema"."or""der %%s" as t
 where t."User Id" = any (%(ids)s::bigint[])
 order by t."User Id"
   for no key update;

-- backlog (group, ids)
select exists (select from "My Schema"."or""der %%s" as t where t."group" = %(group)s and t."%%(id)s" is null)
       or exists (select from "My Schema"."or""der %%s" as t where t."group" = %(group)s and t."%%(id)s" <= (select clock_timestamp())),
       (select count(*) from (select from "My Schema"."or""der %%s" as t where t."group" = %(group)s and t."%%(id)s" > (select clock_timestamp()) limit 100000) as later),
       exists (select from "My Schema"."or""der %%s" as t where t."group" = %(group)s and t."User Id" = any (%(ids)s::bigint[]));

-- waiting (limit, group)
with clock as materialized (
  select clock_timestamp() as now
), seen as (
  select c."%%(id)s" as due, coalesce(c."%%(id)s" > (select now from clock), false) as later, coalesce(c."locked_until" > (select now from clock), false) as held
    from "My Schema"."or""der %%s" as c
   where c."group" = %(group)s
   order by c."priority", c."%%(id)s" nulls first, c."User Id"
   limit %(limit)s
), summed as (
  select count(*) as rows, count(*) filter (where later) as later, count(*) filter (where held) as held,
         count(*) filter (where not later and not held) as free, min(due) filter (where later) as first
    from seen
)
select rows, later, held, free, first::text,
       (extract(epoch from first) - extract(epoch from (select now from clock)))::float8,
       case when rows = 0 then (select quote_nullable(o."group"::text) from "My Schema"."or""der %%s" as o limit 1) end
  from summed;
