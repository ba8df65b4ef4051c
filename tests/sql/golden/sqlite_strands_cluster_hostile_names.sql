-- walk, from the first (group, strand, is_text, visits)
with recursive strands (strand) as (
  select *
    from (select "a""b"
            from "My Schema"."or""der %s"
           where "group" = ?1
             and "a""b" is not null
           order by "a""b"
           limit 1)
  union all
  select (select "a""b"
            from "My Schema"."or""der %s"
           where "group" = ?1
             and "a""b" > strands.strand
           order by "a""b"
           limit 1)
    from strands
   where strands.strand is not null
   limit ?4
), heads as materialized (
  select strand,
         case typeof("strand") when 'text' then "strand" when 'real' then iif("strand" = cast("strand" as integer), cast("strand" as integer), "strand") else "strand" end as name,
         coalesce((select k from (select "User Id" as k, "priority" as o0, "User Id" as o1
                     from "My Schema"."or""der %s"
                    where "group" = ?1
                      and "a""b" = strands.strand
                      and "attempt" > 0
                      and "User Id" is not null
                    order by ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')), o0, o1 limit 1)),
                  (select k
                     from (select * from (select "User Id" as k, "priority" as o0, "User Id" as o1
                              from "My Schema"."or""der %s"
                             where "group" = ?1
                               and "a""b" = strands.strand
                               and "attempt" = 0
                               and "User Id" is not null
                             order by o0, o1 limit 1)
                        union all
                        select * from (select "User Id" as k, "priority" as o0, "User Id" as o1
                              from "My Schema"."or""der %s"
                             where "group" = ?1
                               and "a""b" = strands.strand
                               and "attempt" < 0
                               and "User Id" is not null
                             order by o0, o1 limit 1)
                        union all
                        select * from (select "User Id" as k, "priority" as o0, "User Id" as o1
                              from "My Schema"."or""der %s"
                             where "group" = ?1
                               and "a""b" = strands.strand
                               and "attempt" is null
                               and "User Id" is not null
                             order by o0, o1 limit 1))
                    order by o0, o1 limit 1)) as head
    from strands
)
select name, head,
       (select (("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))))
          from "My Schema"."or""der %s"
         where "User Id" = heads.head),
       (select iif(("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')), (julianday("%(id)s") - julianday('now')) * 86400.0, null)
          from "My Schema"."or""der %s"
         where "User Id" = heads.head)
  from heads
 where strand is not null;

-- walk (group, strand, is_text, visits)
with recursive strands (strand) as (
  select *
    from (select "a""b"
            from "My Schema"."or""der %s"
           where "group" = ?1
             and "a""b" > iif(?3, cast(?2 as text), ?2)
           order by "a""b"
           limit 1)
  union all
  select (select "a""b"
            from "My Schema"."or""der %s"
           where "group" = ?1
             and "a""b" > strands.strand
           order by "a""b"
           limit 1)
    from strands
   where strands.strand is not null
   limit ?4
), heads as materialized (
  select strand,
         case typeof("strand") when 'text' then "strand" when 'real' then iif("strand" = cast("strand" as integer), cast("strand" as integer), "strand") else "strand" end as name,
         coalesce((select k from (select "User Id" as k, "priority" as o0, "User Id" as o1
                     from "My Schema"."or""der %s"
                    where "group" = ?1
                      and "a""b" = strands.strand
                      and "attempt" > 0
                      and "User Id" is not null
                    order by ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')), o0, o1 limit 1)),
                  (select k
                     from (select * from (select "User Id" as k, "priority" as o0, "User Id" as o1
                              from "My Schema"."or""der %s"
                             where "group" = ?1
                               and "a""b" = strands.strand
                               and "attempt" = 0
                               and "User Id" is not null
                             order by o0, o1 limit 1)
                        union all
                        select * from (select "User Id" as k, "priority" as o0, "User Id" as o1
                              from "My Schema"."or""der %s"
                             where "group" = ?1
                               and "a""b" = strands.strand
                               and "attempt" < 0
                               and "User Id" is not null
                             order by o0, o1 limit 1)
                        union all
                        select * from (select "User Id" as k, "priority" as o0, "User Id" as o1
                              from "My Schema"."or""der %s"
                             where "group" = ?1
                               and "a""b" = strands.strand
                               and "attempt" is null
                               and "User Id" is not null
                             order by o0, o1 limit 1))
                    order by o0, o1 limit 1)) as head
    from strands
)
select name, head,
       (select (("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))))
          from "My Schema"."or""der %s"
         where "User Id" = heads.head),
       (select iif(("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')), (julianday("%(id)s") - julianday('now')) * 86400.0, null)
          from "My Schema"."or""der %s"
         where "User Id" = heads.head)
  from heads
 where strand is not null;

-- one (group, strand, is_text)
with strands (strand) as (
  select iif(?3, cast(?2 as text), ?2)
), heads as materialized (
  select strand,
         case typeof("strand") when 'text' then "strand" when 'real' then iif("strand" = cast("strand" as integer), cast("strand" as integer), "strand") else "strand" end as name,
         coalesce((select k from (select "User Id" as k, "priority" as o0, "User Id" as o1
                     from "My Schema"."or""der %s"
                    where "group" = ?1
                      and "a""b" = strands.strand
                      and "attempt" > 0
                      and "User Id" is not null
                    order by ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')), o0, o1 limit 1)),
                  (select k
                     from (select * from (select "User Id" as k, "priority" as o0, "User Id" as o1
                              from "My Schema"."or""der %s"
                             where "group" = ?1
                               and "a""b" = strands.strand
                               and "attempt" = 0
                               and "User Id" is not null
                             order by o0, o1 limit 1)
                        union all
                        select * from (select "User Id" as k, "priority" as o0, "User Id" as o1
                              from "My Schema"."or""der %s"
                             where "group" = ?1
                               and "a""b" = strands.strand
                               and "attempt" < 0
                               and "User Id" is not null
                             order by o0, o1 limit 1)
                        union all
                        select * from (select "User Id" as k, "priority" as o0, "User Id" as o1
                              from "My Schema"."or""der %s"
                             where "group" = ?1
                               and "a""b" = strands.strand
                               and "attempt" is null
                               and "User Id" is not null
                             order by o0, o1 limit 1))
                    order by o0, o1 limit 1)) as head
    from strands
)
select name, head,
       (select (("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))))
          from "My Schema"."or""der %s"
         where "User Id" = heads.head),
       (select iif(("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')), (julianday("%(id)s") - julianday('now')) * 86400.0, null)
          from "My Schema"."or""der %s"
         where "User Id" = heads.head)
  from heads;

-- line (group, strand, is_text)
select k, is_free
  from (select * from (select ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) as part, "User Id" as k, "priority" as o0, "User Id" as o1, (("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) as is_free
              from "My Schema"."or""der %s"
             where "group" = ?1
               and "a""b" = iif(?3, cast(?2 as text), ?2)
               and "attempt" > 0
               and "User Id" is not null
             order by part, o0, o1 limit 64)
        union all
        select * from (select 2 as part, "User Id" as k, "priority" as o0, "User Id" as o1, (("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) as is_free
              from "My Schema"."or""der %s"
             where "group" = ?1
               and "a""b" = iif(?3, cast(?2 as text), ?2)
               and "attempt" = 0
               and "User Id" is not null
             order by o0, o1 limit 64)
        union all
        select * from (select 2 as part, "User Id" as k, "priority" as o0, "User Id" as o1, (("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) as is_free
              from "My Schema"."or""der %s"
             where "group" = ?1
               and "a""b" = iif(?3, cast(?2 as text), ?2)
               and "attempt" < 0
               and "User Id" is not null
             order by o0, o1 limit 64)
        union all
        select * from (select 2 as part, "User Id" as k, "priority" as o0, "User Id" as o1, (("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))) as is_free
              from "My Schema"."or""der %s"
             where "group" = ?1
               and "a""b" = iif(?3, cast(?2 as text), ?2)
               and "attempt" is null
               and "User Id" is not null
             order by o0, o1 limit 64))
 order by part, o0, o1
 limit 64;

-- rows (id x 2)
select "User Id",
       coalesce("locked_until" >= '1900-01-01', 0),
       "a""b",
       case typeof("a""b") when 'text' then "a""b" when 'real' then iif("a""b" = cast("a""b" as integer), cast("a""b" as integer), "a""b") else "a""b" end,
       cast("group" as text),
       "headers",
       cast("pay%load" as text)
  from "My Schema"."or""der %s"
 where "User Id" in (?, ?);

-- candidates of no strand (group, limit)
select "User Id",
       coalesce("locked_until" >= '1900-01-01', 0),
       "a""b",
       case typeof("a""b") when 'text' then "a""b" when 'real' then iif("a""b" = cast("a""b" as integer), cast("a""b" as integer), "a""b") else "a""b" end,
       cast("group" as text),
       "headers",
       cast("pay%load" as text)
  from "My Schema"."or""der %s"
 where "group" = ?1
   and ("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
   and case when ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
        then ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) end
   and "User Id" is not null
   and "a""b" is null
 order by "priority", "%(id)s", "User Id"
 limit ?;

-- waiting (group, limit)
with seen as (
  select "%(id)s" as due, coalesce("%(id)s" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as later,
         coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held,
         ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) as spelt
    from "My Schema"."or""der %s"
   where "group" = ?1
   order by "group", "a""b", "attempt", "priority", "User Id"
   limit ?
), summed as (
  select count(*) as rows, count(*) filter (where spelt and later) as later, count(*) filter (where spelt and held) as held,
         count(*) filter (where spelt and not later and not held) as free, min(due) filter (where spelt and later) as first
    from seen
)
select rows, later, held, free, first, (julianday(first) - julianday('now')) * 86400.0,
       case when rows = 0 then (select quote("group") from "My Schema"."or""der %s" limit 1) end
  from summed;

-- index ()
create index if not exists "or""der %s_claim_in_order" on "or""der %s" ("group", "a""b", "attempt", "priority", "User Id");
