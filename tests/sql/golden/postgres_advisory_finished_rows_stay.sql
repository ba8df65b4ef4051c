-- lock_key (limit, avoided, busy)
with clock as materialized (
  select clock_timestamp() as now
), seen as materialized (
  select c."id" as id, (coalesce(c."id"::text, '')) collate "C" as key
    from "app"."jobs" as c
   where c."processed_at" is null
     and c."id" <> all (%(avoided)s::bigint[])
     and (coalesce(c."id"::text, '')) collate "C" <> all (%(busy)s::text[])
   order by c."id"
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

-- take (id, key)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  update "app"."jobs" as t
     set "attempt" = least(coalesce(t."attempt", 0), 2147483646) + 1
   where t."id" = any (array(
           select c."id"
             from "app"."jobs" as c
            where c."id" = %(id)s::bigint
              and c."processed_at" is null
              and (coalesce(c."id"::text, '')) collate "C" = %(key)s
              for no key update skip locked))
  returning t."id" as id,
            ''::text as token,
            false as expired,
            t."attempt" as attempt,
            t."id" as c1,
            t."attempt" as c2,
            t."processed_at" as c3
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
  from claimed;

-- ack (id, attempt)
update "app"."jobs" as t
   set "processed_at" = (clock_timestamp() at time zone 'utc'),
       "attempt" = %(attempt)s
 where t."id" = %(id)s::bigint;

-- drop (id, attempt)
update "app"."jobs" as t
   set "processed_at" = (clock_timestamp() at time zone 'utc'),
       "attempt" = %(attempt)s
 where t."id" = %(id)s::bigint;

-- retry (id, attempt)
update "app"."jobs" as t
   set "attempt" = %(attempt)s
 where t."id" = %(id)s::bigint;

-- snooze (id, attempt)
update "app"."jobs" as t
   set "attempt" = %(attempt)s
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

-- recount (id, attempt)
update "app"."jobs" as t
   set "attempt" = %(attempt)s
 where t."id" = %(id)s::bigint;
