-- counts ()
with recursive clock as materialized (
  select clock_timestamp() as now
), undated as (
  select count(*) as seen, count(*) filter (where held) as held
    from (select coalesce(c."locked_until" > (select now at time zone 'utc' from clock), false) as held from "app"."jobs" as c where c."processed_at" is null and c."retry_after" is null order by c."retry_after" nulls first, c."id" limit 110000) as rows
), past as (
  select count(*) as seen, count(*) filter (where held) as held, min(due) filter (where not held) as oldest
    from (select coalesce(c."locked_until" > (select now at time zone 'utc' from clock), false) as held, c."retry_after" as due from "app"."jobs" as c where c."processed_at" is null and c."retry_after" <= (select now at time zone 'utc' from clock) order by c."retry_after" nulls first, c."id" limit 110000) as rows
), later as (
  select count(*) as seen
    from (select 1 from "app"."jobs" as c where c."processed_at" is null and c."retry_after" > (select now at time zone 'utc' from clock) order by c."retry_after" nulls first, c."id" limit 100001) as rows
)
select undated.seen + past.seen,
       undated.held + past.held,
       later.seen,
       undated.seen = 110000 or past.seen = 110000 or false,
       false,
       extract(epoch from (select now at time zone 'utc' from clock) - past.oldest)::float8
  from undated, past, later;

-- counts_by_id ()
with clock as materialized (
  select clock_timestamp() as now
)
select count(*) filter (where c."processed_at" is null and true and (c."retry_after" is null or c."retry_after" <= (select now at time zone 'utc' from clock))),
       count(*) filter (where c."processed_at" is null and true and (c."retry_after" is null or c."retry_after" <= (select now at time zone 'utc' from clock)) and coalesce(c."locked_until" > (select now at time zone 'utc' from clock), false)),
       count(*) filter (where c."processed_at" is null and true and c."retry_after" > (select now at time zone 'utc' from clock)),
       count(*) = 110000,
       count(*) = 110000,
       (extract(epoch from (select now at time zone 'utc' from clock) - min(c."retry_after") filter (where c."processed_at" is null and true and (c."retry_after" is null or c."retry_after" <= (select now at time zone 'utc' from clock)) and not coalesce(c."locked_until" > (select now at time zone 'utc' from clock), false))))::float8
  from (select * from "app"."jobs" order by "id" desc limit 110000) as c;
