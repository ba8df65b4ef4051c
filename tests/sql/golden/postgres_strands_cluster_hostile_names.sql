-- walk, from the first (visits, held, avoided, group)
with recursive clock as materialized (
  select clock_timestamp() as now
), held as materialized (
  select unnest(%(held)s::bigint[]) as id
), walked (strand, number) as (
  (select c."a""b", 1
     from "My Schema"."or""der %%s" as c
    where c."group" = %(group)s
      and c."a""b" is not null
    order by c."a""b"
    limit 1)
   union all
  select (select c."a""b"
            from "My Schema"."or""der %%s" as c
           where c."group" = %(group)s
             and c."a""b" > w.strand
           order by c."a""b"
           limit 1), w.number + 1
    from walked as w
   where w.strand is not null
     and w.number < %(visits)s
)
select (s.strand::text)::text, state.*
  from walked as s
 cross join lateral (
       select coalesce(bool_or(l.is_free), false) as is_free, max(l.seconds) as seconds
         from ((select *
            from (select case when c."locked_until" > (select now from clock) then -1 else 0 end as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
                    from "My Schema"."or""der %%s" as c
                   where c."group" = %(group)s
                     and c."a""b" = s.strand
                     and c."attempt" > 0
                     and c."User Id" not in (select id from held)
                  offset 0) as begun
           order by place, priority, id limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
            from "My Schema"."or""der %%s" as c
           where c."group" = %(group)s
             and c."a""b" = s.strand
             and c."attempt" = 0
             and c."User Id" not in (select id from held)
           order by c."attempt", c."priority", c."User Id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
            from "My Schema"."or""der %%s" as c
           where c."group" = %(group)s
             and c."a""b" = s.strand
             and c."attempt" is null
             and c."User Id" not in (select id from held)
           order by c."attempt", c."priority", c."User Id" limit 1)
          order by place, priority, id limit 1) as l
       ) as state
 where s.strand is not null
 order by s.number;

-- walk (after, visits, held, avoided, group)
with recursive clock as materialized (
  select clock_timestamp() as now
), held as materialized (
  select unnest(%(held)s::bigint[]) as id
), walked (strand, number) as (
  (select c."a""b", 1
     from "My Schema"."or""der %%s" as c
    where c."group" = %(group)s
      and c."a""b" > %(after)s::text
    order by c."a""b"
    limit 1)
   union all
  select (select c."a""b"
            from "My Schema"."or""der %%s" as c
           where c."group" = %(group)s
             and c."a""b" > w.strand
           order by c."a""b"
           limit 1), w.number + 1
    from walked as w
   where w.strand is not null
     and w.number < %(visits)s
)
select (s.strand::text)::text, state.*
  from walked as s
 cross join lateral (
       select coalesce(bool_or(l.is_free), false) as is_free, max(l.seconds) as seconds
         from ((select *
            from (select case when c."locked_until" > (select now from clock) then -1 else 0 end as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
                    from "My Schema"."or""der %%s" as c
                   where c."group" = %(group)s
                     and c."a""b" = s.strand
                     and c."attempt" > 0
                     and c."User Id" not in (select id from held)
                  offset 0) as begun
           order by place, priority, id limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
            from "My Schema"."or""der %%s" as c
           where c."group" = %(group)s
             and c."a""b" = s.strand
             and c."attempt" = 0
             and c."User Id" not in (select id from held)
           order by c."attempt", c."priority", c."User Id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
            from "My Schema"."or""der %%s" as c
           where c."group" = %(group)s
             and c."a""b" = s.strand
             and c."attempt" is null
             and c."User Id" not in (select id from held)
           order by c."attempt", c."priority", c."User Id" limit 1)
          order by place, priority, id limit 1) as l
       ) as state
 where s.strand is not null
 order by s.number;

-- these (strands, held, avoided, group)
with clock as materialized (
  select clock_timestamp() as now
), held as materialized (
  select unnest(%(held)s::bigint[]) as id
), named as materialized (
  select n.name, n.number, n.name::text as strand
    from unnest(%(strands)s::text[]) with ordinality as n (name, number)
)
select s.name, state.*
  from named as s
 cross join lateral (
       select coalesce(bool_or(l.is_free), false) as is_free, max(l.seconds) as seconds
         from ((select *
            from (select case when c."locked_until" > (select now from clock) then -1 else 0 end as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
                    from "My Schema"."or""der %%s" as c
                   where c."group" = %(group)s
                     and c."a""b" = s.strand
                     and c."attempt" > 0
                     and c."User Id" not in (select id from held)
                  offset 0) as begun
           order by place, priority, id limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
            from "My Schema"."or""der %%s" as c
           where c."group" = %(group)s
             and c."a""b" = s.strand
             and c."attempt" = 0
             and c."User Id" not in (select id from held)
           order by c."attempt", c."priority", c."User Id" limit 1)
          union all
          (select 1 as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
            from "My Schema"."or""der %%s" as c
           where c."group" = %(group)s
             and c."a""b" = s.strand
             and c."attempt" is null
             and c."User Id" not in (select id from held)
           order by c."attempt", c."priority", c."User Id" limit 1)
          order by place, priority, id limit 1) as l
       ) as state
 order by s.number;

-- guard (strands)
select s.name
  from unnest(%(strands)s::text[]) as s (name)
 where pg_try_advisory_xact_lock(hashtextextended('shardrun:My Schema.or"der %%s:' || s.name, 0));

-- choose (strands, limit, most, held, avoided, group)
with clock as materialized (
  select clock_timestamp() as now
), held as materialized (
  select unnest(%(held)s::bigint[]) as id
), named as materialized (
  select n.name, n.number, n.name::text as strand
    from unnest(%(strands)s::text[]) with ordinality as n (name, number)
), chosen as materialized (
  select s.name, s.number, line.id, line.rank
    from named as s
   cross join lateral (
         select r.id, r.rank
           from (select l.id, row_number() over line as rank, bool_and(l.is_free) over line as goes
                   from ((select *
            from (select case when c."locked_until" > (select now from clock) then -1 else 0 end as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
                    from "My Schema"."or""der %%s" as c
                   where c."group" = %(group)s
                     and c."a""b" = s.strand
                     and c."attempt" > 0
                     and c."User Id" not in (select id from held)
                  offset 0) as begun
           order by place, priority, id limit %(most)s)
          union all
          (select 1 as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
            from "My Schema"."or""der %%s" as c
           where c."group" = %(group)s
             and c."a""b" = s.strand
             and c."attempt" = 0
             and c."User Id" not in (select id from held)
           order by c."attempt", c."priority", c."User Id" limit %(most)s)
          union all
          (select 1 as place, c."priority" as priority, c."User Id" as id, (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) and c."User Id" <> all (%(avoided)s::bigint[]) as is_free, case when c."%%(id)s" > (select now from clock) and (c."locked_until" is null or c."locked_until" <= (select now from clock)) then extract(epoch from c."%%(id)s" - (select now from clock))::float8 end as seconds
            from "My Schema"."or""der %%s" as c
           where c."group" = %(group)s
             and c."a""b" = s.strand
             and c."attempt" is null
             and c."User Id" not in (select id from held)
           order by c."attempt", c."priority", c."User Id" limit %(most)s)
          order by place, priority, id limit %(most)s) as l
                 window line as (order by l.place, l.priority, l.id rows unbounded preceding)) as r
          where r.goes
         ) as line
   order by s.number, line.rank
   limit %(limit)s
), locked as materialized (
  select c."User Id" as id
    from "My Schema"."or""der %%s" as c
   where c."User Id" = any (array(select id from chosen))
     and c."group" = %(group)s
     and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock))
     and (c."locked_until" is null or c."locked_until" <= (select now from clock))
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
  select c."%%(id)s" as due, coalesce(c."%%(id)s" > (select now from clock), false) as later, coalesce(c."locked_until" > (select now from clock), false) as held
    from "My Schema"."or""der %%s" as c
   where c."group" = %(group)s
   order by c."group", c."a""b", c."attempt", c."priority", c."User Id"
   limit %(limit)s
), summed as (
  select count(*) as rows, count(*) filter (where later) as later, count(*) filter (where held) as held,
         count(*) filter (where not later and not held) as free, min(due) filter (where later) as first
    from seen
)
select rows, later, held, free, first::text,
       (extract(epoch from first) - extract(epoch from (select now from clock)))::float8,
       case when rows = 0 then (select quote_nullable(o."group"::text) from "My Schema"."or""der %%s" as o limit 1) end
  from summed;

-- index ()
create index concurrently if not exists "or""der %s_claim_in_order" on "My Schema"."or""der %s" ("group", "a""b", "attempt", "priority", "User Id");

-- rows of no strand (limit, group)
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  update "My Schema"."or""der %%s" as t
     set "locked_until" = greatest((select now from clock) + interval '30.000000 seconds', case when t."locked_until" < '1900-01-01' then t."locked_until" + interval '365000 days' else t."locked_until" end + interval '0.000001 seconds'),
         "attempt" = least(coalesce(t."attempt", 0), 2147483646) + 1
   where t."User Id" = any (array(
           select c."User Id"
             from "My Schema"."or""der %%s" as c
            where c."group" = %(group)s
              and c."a""b" is null
              and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock))
              and (c."locked_until" is null or c."locked_until" <= (select now from clock))
            order by c."priority", c."%%(id)s" nulls first, c."User Id"
            limit %(limit)s
              for no key update skip locked))
  returning t."User Id" as id,
            t."locked_until" as token,
            t."a""b" as key,
            t."group" as its_group,
            t."headers" as headers,
            t."attempt" as attempt,
            case when t."attempt" > 1 then (select o."locked_until" >= '1900-01-01' from "My Schema"."or""der %%s" as o where o."User Id" = t."User Id") end as expired,
            t."priority" as priority,
            t."%%(id)s" as due,
            t."pay%%load" as body,
            t."a""b"::text as lane_key
)
select id,
       token::text,
       attempt::bigint,
       expired is true,
       key,
       lane_key,
       its_group::text,
       headers::text,
       body::text
  from claimed
 order by priority, due nulls first, claimed.id;
