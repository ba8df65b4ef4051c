-- counts ()
with recursive clock as materialized (
  select clock_timestamp() as now
), steps as (
  (select c."priority" as level from "app"."jobs" as c where c."priority" is not null order by c."priority", c."retry_after" nulls first, c."id" limit 1)
  union all
  select (select c."priority" as level from "app"."jobs" as c where c."priority" > steps.level order by c."priority", c."retry_after" nulls first, c."id" limit 1) from steps where steps.level is not null
), priorities as materialized (
  select level from steps where level is not null limit 1000
), undated as (
  select count(*) as seen, count(*) filter (where held) as held
    from (select rows.* from priorities cross join lateral (select coalesce(c."locked_until" > (select now from clock), false) as held from "app"."jobs" as c where c."retry_after" is null and c."priority" = priorities.level order by c."priority", c."retry_after" nulls first, c."id" limit 110000) as rows
          union all
          (select coalesce(c."locked_until" > (select now from clock), false) as held from "app"."jobs" as c where c."retry_after" is null and c."priority" is null order by c."priority", c."retry_after" nulls first, c."id" limit 110000)
           limit 110000) as rows
), past as (
  select count(*) as seen, count(*) filter (where held) as held, min(due) filter (where not held) as oldest
    from (select rows.* from priorities cross join lateral (select coalesce(c."locked_until" > (select now from clock), false) as held, c."retry_after" as due from "app"."jobs" as c where c."retry_after" <= (select now from clock) and c."priority" = priorities.level order by c."priority", c."retry_after" nulls first, c."id" limit 110000) as rows
          union all
          (select coalesce(c."locked_until" > (select now from clock), false) as held, c."retry_after" as due from "app"."jobs" as c where c."retry_after" <= (select now from clock) and c."priority" is null order by c."priority", c."retry_after" nulls first, c."id" limit 110000)
           limit 110000) as rows
), later as (
  select count(*) as seen
    from (select rows.* from priorities cross join lateral (select 1 from "app"."jobs" as c where c."retry_after" > (select now from clock) and c."priority" = priorities.level order by c."priority", c."retry_after" nulls first, c."id" limit 100001) as rows
          union all
          (select 1 from "app"."jobs" as c where c."retry_after" > (select now from clock) and c."priority" is null order by c."priority", c."retry_after" nulls first, c."id" limit 100001)
           limit 100001) as rows
)
select undated.seen + past.seen,
       undated.held + past.held,
       later.seen,
       undated.seen = 110000 or past.seen = 110000 or (select count(*) = 1000 from priorities),
       (select count(*) = 1000 from priorities),
       extract(epoch from (select now from clock) - past.oldest)::float8
  from undated, past, later;

-- counts_by_id ()
with clock as materialized (
  select clock_timestamp() as now
)
select count(*) filter (where true and (c."retry_after" is null or c."retry_after" <= (select now from clock))),
       count(*) filter (where true and (c."retry_after" is null or c."retry_after" <= (select now from clock)) and coalesce(c."locked_until" > (select now from clock), false)),
       count(*) filter (where true and c."retry_after" > (select now from clock)),
       count(*) = 110000,
       count(*) = 110000,
       (extract(epoch from (select now from clock) - min(c."retry_after") filter (where true and (c."retry_after" is null or c."retry_after" <= (select now from clock)) and not coalesce(c."locked_until" > (select now from clock), false))))::float8
  from (select * from "app"."jobs" order by "id" limit 110000) as c;

-- dead ()
select count(*), count(*) = 100001
  from (select from "app"."dead" limit 100001) as rows;

-- dead, without an index ()
select count(*), count(*) = 100001
  from (select from "app"."dead" limit 100001) as rows;

-- failures (error)
select error, count(*), min(due), max(due), min(id), count(*) over (), (sum(count(*)) over ())::bigint
  from (select left(split_part(d."last_error"::text, e'\n', 1), 200) as error,
               to_char(d."retry_after" at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as due,
               d."id" as id
          from "app"."dead" as d
         where true
          and (%(error)s::text is null or position(%(error)s::text in d."last_error") > 0)
         limit 110000) as rows
 group by error
 order by count(*) desc, error
 limit 50;

-- choose (error, limit)
select d."id"
  from "app"."dead" as d
 where true
   and (%(error)s::text is null or position(%(error)s::text in d."last_error") > 0)
 limit %(limit)s;

-- choose, of a list (ids, error, limit)
select d."id"
  from "app"."dead" as d
 where d."id" = any (%(ids)s::bigint[])
   and true
   and (%(error)s::text is null or position(%(error)s::text in d."last_error") > 0)
 limit %(limit)s;

-- stuck (ids)
select q."id"
  from "app"."jobs" as q
 where q."id" = any (%(ids)s::bigint[]);

-- requeue (ids, error)
with chosen as (
  select d.*
    from "app"."dead" as d
   where d."id" = any (%(ids)s::bigint[])
     and true
     and (%(error)s::text is null or position(%(error)s::text in d."last_error") > 0)
   order by d."id"
     for update
), back as (
  insert into "app"."jobs" as t ("id", "payload", "headers", "group", "partition_key", "priority", "retry_after", "attempt", "locked_until", "last_error")
  overriding system value
  select c."id",
         c."payload",
         c."headers",
         c."group",
         c."partition_key",
         c."priority",
         null,
         0,
         coalesce(case when c."locked_until" < '1900-01-01' then c."locked_until" end, (clock_timestamp() + interval '30.000000 seconds' - interval '365000 days')::timestamp with time zone),
         c."last_error"
    from chosen as c
  on conflict do nothing
  returning t."id" as id, (t."partition_key"::text)::text as key
), gone as (
  delete from "app"."dead" as d
   using back
   where d."id" = back.id
)
select id, key
  from back;

-- purge (ids, error)
delete from "app"."dead" as d
 where d."id" = any (%(ids)s::bigint[])
   and true
   and (%(error)s::text is null or position(%(error)s::text in d."last_error") > 0)
returning d."id";

-- waiting (ids)
select d."id"
  from "app"."jobs" as d
 where d."id" = any (%(ids)s::bigint[]);

-- idle (ids)
select d."id"
  from "app"."jobs" as d
 where d."id" = any (%(ids)s::bigint[])
   and (d."locked_until" is null or d."locked_until" <= clock_timestamp())
 order by d."id"
   for update skip locked;

-- park (ids, reason)
with chosen as (
  select d.*
    from "app"."jobs" as d
   where d."id" = any (%(ids)s::bigint[])
     and (d."locked_until" is null or d."locked_until" <= clock_timestamp())
   order by d."id"
     for update skip locked
), copied as (
  insert into "app"."dead" ("id", "payload", "headers", "group", "partition_key", "priority", "retry_after", "attempt", "locked_until", "last_error")
  overriding system value
  select c."id",
         c."payload",
         c."headers",
         c."group",
         c."partition_key",
         c."priority",
         c."retry_after",
         c."attempt",
         case when c."locked_until" >= '1900-01-01' then c."locked_until" - interval '365000 days' else c."locked_until" end,
         %(reason)s::text
    from chosen as c
)
delete from "app"."jobs" as d
 using chosen as c
 where d."id" = c."id"
returning d."id";
