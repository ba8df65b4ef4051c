select count(*) filter (where "group" = ?1 and true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))),
       count(*) filter (where "group" = ?1 and true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)),
       count(*) filter (where "group" = ?1 and true and "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now')),
       count(*) = 110000,
       count(*) = 110000,
       (julianday('now') - julianday(min("retry_after") filter (where "group" = ?1 and true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and not coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)))) * 86400.0
  from (select * from "app"."jobs" where "group" = ?1 and true order by "group", "partition_key", "attempt", "priority", "id" limit 110000);

with recursive strands (strand) as (
  select * from (select "partition_key" from "app"."jobs" where "group" = ?1 and "partition_key" is not null order by "partition_key" limit 1)
  union all
  select (select "partition_key" from "app"."jobs" where "group" = ?1 and "partition_key" > strands.strand order by "partition_key" limit 1)
    from strands
   where strands.strand is not null
   limit 10000
), blocking (id) as materialized (
  select (select "id" from "app"."jobs" where "group" = ?1 and "partition_key" = strands.strand and "attempt" > 0 and "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now') and not coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) order by "attempt", "priority", "id" limit 1)
    from strands
   where strands.strand is not null
), seen as (
  select count(id) as number, count(*) = 10000 as more from blocking
)
select seen.number, seen.more, cast(b."partition_key" as text), b."id", cast(b."attempt" as integer),
       (julianday(b."retry_after") - julianday('now')) * 86400.0, case when b."locked_until" < '1900-01-01' then substr(strftime('%Y-%m-%d %H:%M:%f', b."locked_until", '+365000 days', '-30.000 seconds'), 1, 19) end, b."last_error"
  from seen
  left join blocking on blocking.id is not null
  left join "app"."jobs" as b on b."id" = blocking.id
 order by b."attempt" desc, b."retry_after" desc, b."id"
 limit 10;

