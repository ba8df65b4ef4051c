-- counts ()
with clock as materialized (
  select clock_timestamp() as now
)
select count(*), count(*) filter (where held), 0, count(*) = 110000, false, null::float8
  from (select coalesce(c."locked_until" > (select now from clock), false) as held
          from "app"."jobs" as c
         order by c."id"
         limit 110000) as rows;

-- counts_by_id ()
with clock as materialized (
  select clock_timestamp() as now
)
select count(*) filter (where true),
       count(*) filter (where true and coalesce(c."locked_until" > (select now from clock), false)),
       count(*) filter (where true and false),
       count(*) = 110000,
       count(*) = 110000,
       (null)::float8
  from (select * from "app"."jobs" order by "id" limit 110000) as c;
