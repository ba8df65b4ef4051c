with clock as materialized (
  select clock_timestamp() as now
)
select count(*) filter (where true and (c."retry_after" is null or c."retry_after" <= (select now from clock))),
       count(*) filter (where true and (c."retry_after" is null or c."retry_after" <= (select now from clock)) and coalesce(c."locked_until" > (select now from clock), false)),
       count(*) filter (where true and c."retry_after" > (select now from clock)),
       count(*) = 110000,
       count(*) = 110000,
       (extract(epoch from (select now from clock) - min(c."retry_after") filter (where true and (c."retry_after" is null or c."retry_after" <= (select now from clock)) and not coalesce(c."locked_until" > (select now from clock), false))))::float8
  from (select c.* from "app"."jobs" as c where true order by c."group", c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 110000) as c;

with recursive clock as materialized (
  select clock_timestamp() as now
), strands as (
  (select c."group" as strand from "app"."jobs" as c where c."group" is not null order by c."group" limit 1)
  union all
  select (select c."group" as strand from "app"."jobs" as c where c."group" > strands.strand order by c."group" limit 1)
    from strands
   where strands.strand is not null
), visited as materialized (
  select strand from strands where strand is not null limit 10000
), blocking as materialized (
  select first.id
    from visited
    left join lateral (
      select c."id" as id
        from "app"."jobs" as c
       where c."group" = visited.strand and c."attempt" > 0 and c."retry_after" > (select now from clock) and not coalesce(c."locked_until" > (select now from clock), false)
       order by c."attempt", c."priority", c."retry_after" nulls first, c."id"
       limit 1
    ) as first on true
), seen as (
  select count(id) as number, count(*) = 10000 as more from blocking
)
select seen.number, seen.more, b."group"::text, b."id", b."attempt"::bigint,
       extract(epoch from b."retry_after" - (select now from clock))::float8, case when b."locked_until" < '1900-01-01' then to_char((b."locked_until" + interval '365000 days' - interval '30.000000 seconds') at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') end, b."last_error"::text
  from seen
  left join blocking on blocking.id is not null
  left join "app"."jobs" as b on b."id" = blocking.id
 order by b."attempt" desc, b."retry_after" desc, b."id"
 limit 10;

