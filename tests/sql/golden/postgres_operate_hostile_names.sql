-- counts (group)
with recursive clock as materialized (
  select clock_timestamp() as now
), steps as (
  (select c."priority" as level from "My Schema"."or""der %%s" as c where c."priority" is not null and c."group" >= %(group)s and c."group" <= %(group)s order by c."group", c."priority", c."%%(id)s" nulls first, c."User Id" limit 1)
  union all
  select (select c."priority" as level from "My Schema"."or""der %%s" as c where (c."group", c."priority") > (%(group)s, steps.level) and c."group" <= %(group)s order by c."group", c."priority", c."%%(id)s" nulls first, c."User Id" limit 1) from steps where steps.level is not null
), priorities as materialized (
  select level from steps where level is not null limit 1000
), undated as (
  select count(*) as seen, count(*) filter (where held) as held
    from (select rows.* from priorities cross join lateral (select coalesce(c."locked_until" > (select now from clock), false) as held from "My Schema"."or""der %%s" as c where c."group" = %(group)s and c."%%(id)s" is null and c."priority" = priorities.level order by c."priority", c."%%(id)s" nulls first, c."User Id" limit 110000) as rows
          union all
          (select coalesce(c."locked_until" > (select now from clock), false) as held from "My Schema"."or""der %%s" as c where c."group" = %(group)s and c."%%(id)s" is null and c."priority" is null order by c."priority", c."%%(id)s" nulls first, c."User Id" limit 110000)
           limit 110000) as rows
), past as (
  select count(*) as seen, count(*) filter (where held) as held, min(due) filter (where not held) as oldest
    from (select rows.* from priorities cross join lateral (select coalesce(c."locked_until" > (select now from clock), false) as held, c."%%(id)s" as due from "My Schema"."or""der %%s" as c where c."group" = %(group)s and c."%%(id)s" <= (select now from clock) and c."priority" = priorities.level order by c."priority", c."%%(id)s" nulls first, c."User Id" limit 110000) as rows
          union all
          (select coalesce(c."locked_until" > (select now from clock), false) as held, c."%%(id)s" as due from "My Schema"."or""der %%s" as c where c."group" = %(group)s and c."%%(id)s" <= (select now from clock) and c."priority" is null order by c."priority", c."%%(id)s" nulls first, c."User Id" limit 110000)
           limit 110000) as rows
), later as (
  select count(*) as seen
    from (select rows.* from priorities cross join lateral (select 1 from "My Schema"."or""der %%s" as c where c."group" = %(group)s and c."%%(id)s" > (select now from clock) and c."priority" = priorities.level order by c."priority", c."%%(id)s" nulls first, c."User Id" limit 100001) as rows
          union all
          (select 1 from "My Schema"."or""der %%s" as c where c."group" = %(group)s and c."%%(id)s" > (select now from clock) and c."priority" is null order by c."priority", c."%%(id)s" nulls first, c."User Id" limit 100001)
           limit 100001) as rows
)
select undated.seen + past.seen,
       undated.held + past.held,
       later.seen,
       undated.seen = 110000 or past.seen = 110000 or (select count(*) = 1000 from priorities),
       (select count(*) = 1000 from priorities),
       extract(epoch from (select now from clock) - past.oldest)::float8
  from undated, past, later;

-- counts_by_id (group)
with clock as materialized (
  select clock_timestamp() as now
)
select count(*) filter (where c."group" = %(group)s and true and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock))),
       count(*) filter (where c."group" = %(group)s and true and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and coalesce(c."locked_until" > (select now from clock), false)),
       count(*) filter (where c."group" = %(group)s and true and c."%%(id)s" > (select now from clock)),
       count(*) = 110000,
       count(*) = 110000,
       (extract(epoch from (select now from clock) - min(c."%%(id)s") filter (where c."group" = %(group)s and true and (c."%%(id)s" is null or c."%%(id)s" <= (select now from clock)) and not coalesce(c."locked_until" > (select now from clock), false))))::float8
  from (select * from "My Schema"."or""der %%s" order by "User Id" limit 110000) as c;

-- dead (group)
select count(*) filter (where c."group" = %(group)s), count(*) = 110000
  from (select * from "dead" limit 110000) as c;

-- dead, without an index (group)
select count(*) filter (where c."group" = %(group)s), count(*) = 110000
  from (select * from "dead" limit 110000) as c;

-- failures (group, error)
select error, count(*), min(due), max(due), min(id), count(*) over (), (sum(count(*)) over ())::bigint
  from (select left(split_part(d."last_error"::text, e'\n', 1), 200) as error,
               to_char(d."%%(id)s" at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as due,
               d."User Id" as id
          from "dead" as d
         where d."group" = %(group)s
          and (%(error)s::text is null or position(%(error)s::text in d."last_error") > 0)
         limit 110000) as rows
 group by error
 order by count(*) desc, error
 limit 50;

-- choose (group, error, limit)
select d."User Id"
  from "dead" as d
 where d."group" = %(group)s
   and (%(error)s::text is null or position(%(error)s::text in d."last_error") > 0)
 limit %(limit)s;

-- choose, of a list (ids, group, error, limit)
select d."User Id"
  from "dead" as d
 where d."User Id" = any (%(ids)s::bigint[])
   and d."group" = %(group)s
   and (%(error)s::text is null or position(%(error)s::text in d."last_error") > 0)
 limit %(limit)s;

-- stuck (ids)
select q."User Id"
  from "My Schema"."or""der %%s" as q
 where q."User Id" = any (%(ids)s::bigint[]);

-- requeue (ids, group, error)
with chosen as (
  select d.*
    from "dead" as d
   where d."User Id" = any (%(ids)s::bigint[])
     and d."group" = %(group)s
     and (%(error)s::text is null or position(%(error)s::text in d."last_error") > 0)
   order by d."User Id"
     for update
), back as (
  insert into "My Schema"."or""der %%s" as t ("User Id", "pay%%load", "headers", "group", "a""b", "priority", "%%(id)s", "attempt", "locked_until", "last_error")
  overriding system value
  select c."User Id",
         c."pay%%load",
         c."headers",
         c."group",
         c."a""b",
         c."priority",
         null,
         0,
         coalesce(case when c."locked_until" < '1900-01-01' then c."locked_until" end, (clock_timestamp() + interval '30.000000 seconds' - interval '365000 days')::timestamp with time zone),
         c."last_error"
    from chosen as c
  on conflict do nothing
  returning t."User Id" as id, (t."a""b"::text)::text as key
), gone as (
  delete from "dead" as d
   using back
   where d."User Id" = back.id
)
select id, key
  from back;

-- purge (ids, group, error)
delete from "dead" as d
 where d."User Id" = any (%(ids)s::bigint[])
   and d."group" = %(group)s
   and (%(error)s::text is null or position(%(error)s::text in d."last_error") > 0)
returning d."User Id";

-- waiting (ids, group)
select d."User Id"
  from "My Schema"."or""der %%s" as d
 where d."User Id" = any (%(ids)s::bigint[])
   and d."group" = %(group)s;

-- idle (ids, group)
select d."User Id"
  from "My Schema"."or""der %%s" as d
 where d."User Id" = any (%(ids)s::bigint[])
   and d."group" = %(group)s
   and (d."locked_until" is null or d."locked_until" <= clock_timestamp())
 order by d."User Id"
   for update skip locked;

-- park (ids, group, reason)
with chosen as (
  select d.*
    from "My Schema"."or""der %%s" as d
   where d."User Id" = any (%(ids)s::bigint[])
     and d."group" = %(group)s
     and (d."locked_until" is null or d."locked_until" <= clock_timestamp())
   order by d."User Id"
     for update skip locked
), copied as (
  insert into "dead" ("User Id", "pay%%load", "headers", "group", "a""b", "priority", "%%(id)s", "attempt", "locked_until", "last_error")
  overriding system value
  select c."User Id",
         c."pay%%load",
         c."headers",
         c."group",
         c."a""b",
         c."priority",
         c."%%(id)s",
         c."attempt",
         case when c."locked_until" >= '1900-01-01' then c."locked_until" - interval '365000 days' else c."locked_until" end,
         %(reason)s::text
    from chosen as c
)
delete from "My Schema"."or""der %%s" as d
 using chosen as c
 where d."User Id" = c."User Id"
returning d."User Id";
