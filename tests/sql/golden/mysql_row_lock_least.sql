-- candidates (avoided, limit)
select seen.id, row_number() over (order by seen.id)
  from (select c.`id` as id
          from `app`.`jobs` as c
         where (c.`id` in %(avoided)s) is not true
         order by c.`id`
         limit %(limit)s) as seen
 order by seen.id;

-- candidates, by their index (avoided, limit)
select seen.id, row_number() over (order by seen.id)
  from (select c.`id` as id
          from `app`.`jobs` as c force index (`claim's ``index```)
         where (c.`id` in %(avoided)s) is not true
         order by c.`id`
         limit %(limit)s) as seen
 order by seen.id;

-- hold (ids, limit)
select t.`id`,
       1,
       null,
       null,
       null,
       null,
       null,
       t.`id`
  from `app`.`jobs` as t
 where t.`id` in %(ids)s
 order by t.`id`
 limit %(limit)s
   for update skip locked;

-- ack (id)
delete t
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- drop (id)
delete t
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- retry (id)
select 1
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- snooze (id)
select 1
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- recount (id)
select 1
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- look (id)
select 1
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- remove (id)
delete t
  from `app`.`jobs` as t
 where t.`id` = %(id)s;
