-- begin ()
begin;

-- claim (limit, avoided)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  select c."id" as id,
         ''::text as token,
         false as expired,
         c."id" as c1
    from "app"."jobs" as c
   where c."id" <> all (%(avoided)s::bigint[])
   order by c."id"
   limit %(limit)s
     for no key update skip locked
)
select id,
       token::text,
       1,
       false,
       null,
       null,
       null,
       null,
       null,
       c1
  from claimed
 order by claimed.id;

-- take_again (id)
with clock as materialized (
  select clock_timestamp() as now
)
select from "app"."jobs" as c
 where c."id" = %(id)s::bigint
   for no key update skip locked;

-- ack (id)
delete from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- drop (id)
delete from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- retry (id)
select from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- snooze (id)
select from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- release (id)
select from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- recount (id)
select from "app"."jobs" as t
 where t."id" = %(id)s::bigint;
