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
