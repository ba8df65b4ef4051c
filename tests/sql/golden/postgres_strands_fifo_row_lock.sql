-- walk, from the first (visits, avoided, group)
with recursive clock as materialized (
  select clock_timestamp() as now
), guarded as materialized (
  select l.classid::bigint << 32 | l.objid::bigint as key
    from pg_locks as l
   where l.locktype = 'advisory'
     and l.objsubid = 1
     and l.database = (select d.oid from pg_database as d where d.datname = current_database())
), walked (strand, number) as (
  (select c."group", 1
     from "app"."jobs" as c
    where c."group" = %(group)s
      and c."group" is not null
    order by c."group"
    limit 1)
   union all
  select (select c."group"
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" > w.strand
           order by c."group"
           limit 1), w.number + 1
    from walked as w
   where w.strand is not null
     and w.number < %(visits)s
)
select (s.strand::text)::text, state.*
  from walked as s
 cross join lateral (
       select h.id is not null and h.id <> all (%(avoided)s::bigint[]) and hashtextextended('shardrun:app.jobs:' || (s.strand::text)::text, 0) not in (select key from guarded) as is_free, case when not h.is_held then extract(epoch from h.put_off - (select now from clock))::float8 end as seconds
         from (select b.is_held, b.put_off, case when not b.is_held and b.put_off is null then (
         select id from ((select *
            from (select 0 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
                    from "app"."jobs" as c
                   where c."group" = %(group)s
                     and c."group" = s.strand
                     and c."attempt" > 0
                  offset 0) as begun
           order by priority, due nulls first, id limit 1)
          union all
          (with recursive level as (
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is not null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
           union all
          select n.* from level as l cross join lateral (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" > l.priority
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1) as n
           where l.due > (select now from clock)
          )
          select * from level as l where l.due is null or l.due <= (select now from clock))
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is null
             and c."retry_after" is null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is null
             and c."retry_after" <= (select now from clock)
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (with recursive level as (
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is not null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
           union all
          select n.* from level as l cross join lateral (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" > l.priority
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1) as n
           where l.due > (select now from clock)
          )
          select * from level as l where l.due is null or l.due <= (select now from clock))
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is null
             and c."retry_after" is null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is null
             and c."retry_after" <= (select now from clock)
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)) as h
          order by place, priority, due nulls first, id limit 1) end as id
           from (select false as is_held,
                max(c."retry_after") filter (where c."retry_after" > (select now from clock)) as put_off
           from "app"."jobs" as c
          where c."group" = %(group)s
            and c."group" = s.strand
            and c."attempt" > 0) as b
         offset 0) as h
       ) as state
 where s.strand is not null
 order by s.number;

-- walk (after, visits, avoided, group)
with recursive clock as materialized (
  select clock_timestamp() as now
), guarded as materialized (
  select l.classid::bigint << 32 | l.objid::bigint as key
    from pg_locks as l
   where l.locktype = 'advisory'
     and l.objsubid = 1
     and l.database = (select d.oid from pg_database as d where d.datname = current_database())
), walked (strand, number) as (
  (select c."group", 1
     from "app"."jobs" as c
    where c."group" = %(group)s
      and c."group" > %(after)s::text
    order by c."group"
    limit 1)
   union all
  select (select c."group"
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" > w.strand
           order by c."group"
           limit 1), w.number + 1
    from walked as w
   where w.strand is not null
     and w.number < %(visits)s
)
select (s.strand::text)::text, state.*
  from walked as s
 cross join lateral (
       select h.id is not null and h.id <> all (%(avoided)s::bigint[]) and hashtextextended('shardrun:app.jobs:' || (s.strand::text)::text, 0) not in (select key from guarded) as is_free, case when not h.is_held then extract(epoch from h.put_off - (select now from clock))::float8 end as seconds
         from (select b.is_held, b.put_off, case when not b.is_held and b.put_off is null then (
         select id from ((select *
            from (select 0 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
                    from "app"."jobs" as c
                   where c."group" = %(group)s
                     and c."group" = s.strand
                     and c."attempt" > 0
                  offset 0) as begun
           order by priority, due nulls first, id limit 1)
          union all
          (with recursive level as (
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is not null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
           union all
          select n.* from level as l cross join lateral (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" > l.priority
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1) as n
           where l.due > (select now from clock)
          )
          select * from level as l where l.due is null or l.due <= (select now from clock))
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is null
             and c."retry_after" is null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is null
             and c."retry_after" <= (select now from clock)
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (with recursive level as (
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is not null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
           union all
          select n.* from level as l cross join lateral (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" > l.priority
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1) as n
           where l.due > (select now from clock)
          )
          select * from level as l where l.due is null or l.due <= (select now from clock))
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is null
             and c."retry_after" is null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is null
             and c."retry_after" <= (select now from clock)
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)) as h
          order by place, priority, due nulls first, id limit 1) end as id
           from (select false as is_held,
                max(c."retry_after") filter (where c."retry_after" > (select now from clock)) as put_off
           from "app"."jobs" as c
          where c."group" = %(group)s
            and c."group" = s.strand
            and c."attempt" > 0) as b
         offset 0) as h
       ) as state
 where s.strand is not null
 order by s.number;

-- these (strands, avoided, group)
with clock as materialized (
  select clock_timestamp() as now
), guarded as materialized (
  select l.classid::bigint << 32 | l.objid::bigint as key
    from pg_locks as l
   where l.locktype = 'advisory'
     and l.objsubid = 1
     and l.database = (select d.oid from pg_database as d where d.datname = current_database())
), named as materialized (
  select n.name, n.number, n.name::text as strand
    from unnest(%(strands)s::text[]) with ordinality as n (name, number)
)
select s.name, state.*
  from named as s
 cross join lateral (
       select h.id is not null and h.id <> all (%(avoided)s::bigint[]) and hashtextextended('shardrun:app.jobs:' || s.name, 0) not in (select key from guarded) as is_free, case when not h.is_held then extract(epoch from h.put_off - (select now from clock))::float8 end as seconds
         from (select b.is_held, b.put_off, case when not b.is_held and b.put_off is null then (
         select id from ((select *
            from (select 0 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
                    from "app"."jobs" as c
                   where c."group" = %(group)s
                     and c."group" = s.strand
                     and c."attempt" > 0
                  offset 0) as begun
           order by priority, due nulls first, id limit 1)
          union all
          (with recursive level as (
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is not null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
           union all
          select n.* from level as l cross join lateral (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" > l.priority
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1) as n
           where l.due > (select now from clock)
          )
          select * from level as l where l.due is null or l.due <= (select now from clock))
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is null
             and c."retry_after" is null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is null
             and c."retry_after" <= (select now from clock)
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (with recursive level as (
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is not null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
           union all
          select n.* from level as l cross join lateral (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" > l.priority
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1) as n
           where l.due > (select now from clock)
          )
          select * from level as l where l.due is null or l.due <= (select now from clock))
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is null
             and c."retry_after" is null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is null
             and c."retry_after" <= (select now from clock)
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)) as h
          order by place, priority, due nulls first, id limit 1) end as id
           from (select false as is_held,
                max(c."retry_after") filter (where c."retry_after" > (select now from clock)) as put_off
           from "app"."jobs" as c
          where c."group" = %(group)s
            and c."group" = s.strand
            and c."attempt" > 0) as b
         offset 0) as h
       ) as state
 order by s.number;

-- guard (strands)
select s.name
  from unnest(%(strands)s::text[]) as s (name)
 where pg_try_advisory_xact_lock(hashtextextended('shardrun:app.jobs:' || s.name, 0))
 limit 1;

-- choose (strands, limit, avoided, group)
with clock as materialized (
  select clock_timestamp() as now
), named as materialized (
  select n.name, n.number, n.name::text as strand
    from unnest(%(strands)s::text[]) with ordinality as n (name, number)
), chosen as materialized (
  select s.name, s.number, line.id, line.rank
    from named as s
   cross join lateral (
         select h.id, 1 as rank
           from (select b.is_held, b.put_off, case when not b.is_held and b.put_off is null then (
         select id from ((select *
            from (select 0 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
                    from "app"."jobs" as c
                   where c."group" = %(group)s
                     and c."group" = s.strand
                     and c."attempt" > 0
                  offset 0) as begun
           order by priority, due nulls first, id limit 1)
          union all
          (with recursive level as (
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is not null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
           union all
          select n.* from level as l cross join lateral (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" > l.priority
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1) as n
           where l.due > (select now from clock)
          )
          select * from level as l where l.due is null or l.due <= (select now from clock))
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is null
             and c."retry_after" is null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" = 0
             and c."priority" is null
             and c."retry_after" <= (select now from clock)
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (with recursive level as (
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is not null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
           union all
          select n.* from level as l cross join lateral (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" > l.priority
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1) as n
           where l.due > (select now from clock)
          )
          select * from level as l where l.due is null or l.due <= (select now from clock))
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is null
             and c."retry_after" is null
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."retry_after" as due, c."id" as id
            from "app"."jobs" as c
           where c."group" = %(group)s
             and c."group" = s.strand
             and c."attempt" is null
             and c."priority" is null
             and c."retry_after" <= (select now from clock)
           order by c."attempt", c."priority", c."retry_after" nulls first, c."id" limit 1)) as h
          order by place, priority, due nulls first, id limit 1) end as id
           from (select false as is_held,
                max(c."retry_after") filter (where c."retry_after" > (select now from clock)) as put_off
           from "app"."jobs" as c
          where c."group" = %(group)s
            and c."group" = s.strand
            and c."attempt" > 0) as b
         offset 0) as h
          where h.id is not null and h.id <> all (%(avoided)s::bigint[])
         ) as line
   order by s.number, line.rank
   limit %(limit)s
), locked as materialized (
  select c."id" as id
    from "app"."jobs" as c
   where c."id" = any (array(select id from chosen))
     and c."group" = %(group)s
     and (c."retry_after" is null or c."retry_after" <= (select now from clock))
     for no key update skip locked
)
select c.name, c.id
  from chosen as c
 where not exists (select from chosen as e
                    where e.number = c.number and e.rank <= c.rank and e.id not in (select id from locked))
 order by c.number, c.rank;

-- waiting (limit, group)
with clock as materialized (
  select clock_timestamp() as now
), seen as (
  select c."retry_after" as due, coalesce(c."retry_after" > (select now from clock), false) as later, false as held
    from "app"."jobs" as c
   where c."group" = %(group)s
   order by c."group", c."attempt", c."priority", c."retry_after" nulls first, c."id"
   limit %(limit)s
), summed as (
  select count(*) as rows, count(*) filter (where later) as later, count(*) filter (where held) as held,
         count(*) filter (where not later and not held) as free, min(due) filter (where later) as first
    from seen
)
select rows, later, held, free, first::text,
       (extract(epoch from first) - extract(epoch from (select now from clock)))::float8,
       case when rows = 0 then (select quote_nullable(o."group"::text) from "app"."jobs" as o limit 1) end
  from summed;

-- index ()
create index concurrently if not exists "jobs_claim_in_order" on "app"."jobs" ("group", "attempt", "priority", "retry_after" nulls first, "id");

-- guard of a row (id)
select coalesce(pg_try_advisory_xact_lock(hashtextextended('shardrun:app.jobs:' || (t."group"::text)::text, 0)), true)
  from "app"."jobs" as t
 where t."id" = %(id)s::bigint;

-- rows of no strand (limit, avoided, group)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  select c."id" as id,
         ''::text as token,
         false as expired,
         c."partition_key" as key,
         c."group" as its_group,
         c."headers" as headers,
         c."priority" as priority,
         c."retry_after" as due,
         c."payload" as body,
         (least(coalesce(c."attempt", 0), 2147483646) + 1)::integer as attempt
    from "app"."jobs" as c
   where c."group" = %(group)s
     and c."group" is null
     and (c."retry_after" is null or c."retry_after" <= (select now from clock))
     and c."id" <> all (%(avoided)s::bigint[])
   order by c."priority", c."retry_after" nulls first, c."id"
   limit %(limit)s
     for no key update skip locked
)
select id,
       token::text,
       attempt::bigint,
       expired is true,
       key,
       null,
       its_group::text,
       headers::text,
       body::text
  from claimed
 order by priority, due nulls first, claimed.id;
