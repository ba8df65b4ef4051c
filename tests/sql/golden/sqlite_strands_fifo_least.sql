-- walk, from the first (group, strand, is_text, visits)
with recursive strands (strand) as (
  select *
    from (select "group"
            from "app"."jobs"
           where "processed_at" is null
             and "group" is not null
           order by "group"
           limit 1)
  union all
  select (select "group"
            from "app"."jobs"
           where "processed_at" is null
             and "group" > strands.strand
           order by "group"
           limit 1)
    from strands
   where strands.strand is not null
   limit ?4
), heads as materialized (
  select strand,
         case typeof("strand") when 'text' then "strand" when 'real' then iif("strand" = cast("strand" as integer), cast("strand" as integer), "strand") else "strand" end as name,
         coalesce((select k from (select "id" as k, "id" as o0
                     from "app"."jobs"
                    where "processed_at" is null
                      and "group" = strands.strand
                      and "attempt" > 0
                    order by o0 limit 1)),
                  (select k
                     from (select * from (select "id" as k, "id" as o0
                              from "app"."jobs"
                             where "processed_at" is null
                               and "group" = strands.strand
                               and "attempt" = 0
                               and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
                               and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))
                             order by o0 limit 1)
                        union all
                        select * from (select "id" as k, "id" as o0
                              from "app"."jobs"
                             where "processed_at" is null
                               and "group" = strands.strand
                               and "attempt" < 0
                               and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
                               and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))
                             order by o0 limit 1)
                        union all
                        select * from (select "id" as k, "id" as o0
                              from "app"."jobs"
                             where "processed_at" is null
                               and "group" = strands.strand
                               and "attempt" is null
                               and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
                               and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))
                             order by o0 limit 1))
                    order by o0 limit 1)) as head
    from strands
)
select name, head,
       not exists (select 1
          from "app"."jobs"
         where "processed_at" is null
           and "group" = heads.strand
           and "attempt" > 0
           and (("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) is not 1),
       (select iif(min(1), max((julianday("locked_until") - julianday('now')) * 86400.0), null)
          from "app"."jobs"
         where "processed_at" is null
           and "group" = heads.strand
           and "attempt" > 0)
  from heads
 where strand is not null;

-- walk (group, strand, is_text, visits)
with recursive strands (strand) as (
  select *
    from (select "group"
            from "app"."jobs"
           where "processed_at" is null
             and "group" > iif(?3, cast(?2 as text), ?2)
           order by "group"
           limit 1)
  union all
  select (select "group"
            from "app"."jobs"
           where "processed_at" is null
             and "group" > strands.strand
           order by "group"
           limit 1)
    from strands
   where strands.strand is not null
   limit ?4
), heads as materialized (
  select strand,
         case typeof("strand") when 'text' then "strand" when 'real' then iif("strand" = cast("strand" as integer), cast("strand" as integer), "strand") else "strand" end as name,
         coalesce((select k from (select "id" as k, "id" as o0
                     from "app"."jobs"
                    where "processed_at" is null
                      and "group" = strands.strand
                      and "attempt" > 0
                    order by o0 limit 1)),
                  (select k
                     from (select * from (select "id" as k, "id" as o0
                              from "app"."jobs"
                             where "processed_at" is null
                               and "group" = strands.strand
                               and "attempt" = 0
                               and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
                               and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))
                             order by o0 limit 1)
                        union all
                        select * from (select "id" as k, "id" as o0
                              from "app"."jobs"
                             where "processed_at" is null
                               and "group" = strands.strand
                               and "attempt" < 0
                               and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
                               and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))
                             order by o0 limit 1)
                        union all
                        select * from (select "id" as k, "id" as o0
                              from "app"."jobs"
                             where "processed_at" is null
                               and "group" = strands.strand
                               and "attempt" is null
                               and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
                               and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))
                             order by o0 limit 1))
                    order by o0 limit 1)) as head
    from strands
)
select name, head,
       not exists (select 1
          from "app"."jobs"
         where "processed_at" is null
           and "group" = heads.strand
           and "attempt" > 0
           and (("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) is not 1),
       (select iif(min(1), max((julianday("locked_until") - julianday('now')) * 86400.0), null)
          from "app"."jobs"
         where "processed_at" is null
           and "group" = heads.strand
           and "attempt" > 0)
  from heads
 where strand is not null;

-- one (group, strand, is_text)
with strands (strand) as (
  select iif(?3, cast(?2 as text), ?2)
), heads as materialized (
  select strand,
         case typeof("strand") when 'text' then "strand" when 'real' then iif("strand" = cast("strand" as integer), cast("strand" as integer), "strand") else "strand" end as name,
         coalesce((select k from (select "id" as k, "id" as o0
                     from "app"."jobs"
                    where "processed_at" is null
                      and "group" = strands.strand
                      and "attempt" > 0
                    order by o0 limit 1)),
                  (select k
                     from (select * from (select "id" as k, "id" as o0
                              from "app"."jobs"
                             where "processed_at" is null
                               and "group" = strands.strand
                               and "attempt" = 0
                               and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
                               and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))
                             order by o0 limit 1)
                        union all
                        select * from (select "id" as k, "id" as o0
                              from "app"."jobs"
                             where "processed_at" is null
                               and "group" = strands.strand
                               and "attempt" < 0
                               and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
                               and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))
                             order by o0 limit 1)
                        union all
                        select * from (select "id" as k, "id" as o0
                              from "app"."jobs"
                             where "processed_at" is null
                               and "group" = strands.strand
                               and "attempt" is null
                               and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
                               and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))
                             order by o0 limit 1))
                    order by o0 limit 1)) as head
    from strands
)
select name, head,
       not exists (select 1
          from "app"."jobs"
         where "processed_at" is null
           and "group" = heads.strand
           and "attempt" > 0
           and (("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) is not 1),
       (select iif(min(1), max((julianday("locked_until") - julianday('now')) * 86400.0), null)
          from "app"."jobs"
         where "processed_at" is null
           and "group" = heads.strand
           and "attempt" > 0)
  from heads;

-- line (group, strand, is_text)
select k, is_free
  from (select * from (select ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) as part, "id" as k, "id" as o0, (("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) as is_free
              from "app"."jobs"
             where "processed_at" is null
               and "group" = iif(?3, cast(?2 as text), ?2)
               and "attempt" > 0
             order by part, o0 limit 64)
        union all
        select * from (select 2 as part, "id" as k, "id" as o0, (("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) as is_free
              from "app"."jobs"
             where "processed_at" is null
               and "group" = iif(?3, cast(?2 as text), ?2)
               and "attempt" = 0
             order by o0 limit 64)
        union all
        select * from (select 2 as part, "id" as k, "id" as o0, (("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) as is_free
              from "app"."jobs"
             where "processed_at" is null
               and "group" = iif(?3, cast(?2 as text), ?2)
               and "attempt" < 0
             order by o0 limit 64)
        union all
        select * from (select 2 as part, "id" as k, "id" as o0, (("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) as is_free
              from "app"."jobs"
             where "processed_at" is null
               and "group" = iif(?3, cast(?2 as text), ?2)
               and "attempt" is null
             order by o0 limit 64))
 order by part, o0
 limit 64;

-- rows (id x 2)
select "id",
       coalesce("locked_until" >= '1900-01-01', 0),
       null,
       null,
       cast("group" as text),
       null,
       null,
       "id",
       "group",
       "attempt",
       "locked_until",
       "processed_at"
  from "app"."jobs"
 where "id" in (?, ?);

-- candidates of no strand (limit)
select "id",
       coalesce("locked_until" >= '1900-01-01', 0),
       null,
       null,
       cast("group" as text),
       null,
       null,
       "id",
       "group",
       "attempt",
       "locked_until",
       "processed_at"
  from "app"."jobs"
 where "processed_at" is null
   and case when ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
        then ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) end
   and "group" is null
 order by "id"
 limit ?;

-- waiting (limit)
with seen as (
  select null as due, coalesce(null > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as later,
         coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held,
         ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) as spelt
    from "app"."jobs"
   where "processed_at" is null
   order by "group", "attempt", "id"
   limit ?
), summed as (
  select count(*) as rows, count(*) filter (where spelt and later) as later, count(*) filter (where spelt and held) as held,
         count(*) filter (where spelt and not later and not held) as free, min(due) filter (where spelt and later) as first
    from seen
)
select rows, later, held, free, first, (julianday(first) - julianday('now')) * 86400.0,
       case when rows = 0 then null end
  from summed;

-- index ()
create index if not exists "jobs_claim_in_order" on "jobs" ("group", "attempt", "id") where "processed_at" is null;
