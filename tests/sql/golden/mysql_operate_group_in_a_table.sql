-- counts (group, level, undated, past, later)
select undated.seen, undated.held, past.seen, past.held, later.seen, timestampdiff(microsecond, past.oldest, utc_timestamp(6)) / 1e6
  from (select count(*) as seen, cast(ifnull(sum(held), 0) as signed) as held, min(if(held, null, due)) as oldest
  from (select ifnull(c.`locked_until` > utc_timestamp(6), 0) as held, c.`retry_after` as due
          from `app`.`jobs` as c force index (`PRIMARY`)
         where c.`group` = %(group)s and c.`priority` <=> %(level)s and c.`retry_after` is null
         limit %(undated)s) as rows_of_undated) as undated,
       (select count(*) as seen, cast(ifnull(sum(held), 0) as signed) as held, min(if(held, null, due)) as oldest
  from (select ifnull(c.`locked_until` > utc_timestamp(6), 0) as held, c.`retry_after` as due
          from `app`.`jobs` as c force index (`PRIMARY`)
         where c.`group` = %(group)s and c.`priority` <=> %(level)s and c.`retry_after` <= utc_timestamp(6)
         order by c.`priority`, c.`retry_after`, c.`id` limit %(past)s) as rows_of_past) as past,
       (select count(*) as seen, cast(ifnull(sum(held), 0) as signed) as held, min(if(held, null, due)) as oldest
  from (select ifnull(c.`locked_until` > utc_timestamp(6), 0) as held, c.`retry_after` as due
          from `app`.`jobs` as c force index (`PRIMARY`)
         where c.`group` = %(group)s and c.`priority` <=> %(level)s and c.`retry_after` > utc_timestamp(6)
         order by c.`priority`, c.`retry_after`, c.`id` limit %(later)s) as rows_of_later) as later;

-- first_level (group)
select c.`priority`
  from `app`.`jobs` as c force index (`PRIMARY`)
 where c.`group` = %(group)s and c.`priority` is not null
 order by c.`priority`, c.`retry_after`, c.`id`
 limit 1;

-- next_level (group, level)
select c.`priority`
  from `app`.`jobs` as c force index (`PRIMARY`)
 where c.`group` = %(group)s and c.`priority` > %(level)s
 order by c.`priority`, c.`retry_after`, c.`id`
 limit 1;

-- counts_by_id (group)
select cast(ifnull(sum(due), 0) as signed),
       cast(ifnull(sum(due and held), 0) as signed),
       cast(ifnull(sum(later), 0) as signed),
       count(*),
       timestampdiff(microsecond, min(if(mine, since, null)), utc_timestamp(6)) / 1e6
  from (select c.`group` = %(group)s and true as mine, c.`group` = %(group)s and true and (c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6)) as due, c.`group` = %(group)s and true and ifnull(c.`retry_after` > utc_timestamp(6), false) as later, ifnull(c.`locked_until` > utc_timestamp(6), 0) as held,
               if((c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6)) and not ifnull(c.`locked_until` > utc_timestamp(6), 0), c.`retry_after`, null) as since
          from `app`.`jobs` as c
         order by c.`id`
         limit 110000) as looked_at;

-- dead (group)
select cast(ifnull(sum(found), 0) as signed), count(*) = 110000
  from (select c.`group` = %(group)s as found from `app`.`dead` as c limit 110000) as looked_at;

-- dead, without an index (group)
select cast(ifnull(sum(found), 0) as signed), count(*) = 110000
  from (select c.`group` = %(group)s as found from `app`.`dead` as c limit 110000) as looked_at;

-- failures (group, error)
select error, count(*), date_format(min(due), '%%Y-%%m-%%d %%H:%%i:%%s'), date_format(max(due), '%%Y-%%m-%%d %%H:%%i:%%s'), min(id),
       count(*) over (), cast(sum(count(*)) over () as signed)
  from (select left(substring_index(convert(d.`last_error` using utf8mb4), '\n', 1), 200) collate utf8mb4_bin as error,
               d.`retry_after` as due,
               d.`id` as id
          from `app`.`dead` as d
         where d.`group` = %(group)s
          and (%(error)s is null or locate(cast(%(error)s as binary), cast(convert(d.`last_error` using utf8mb4) as binary)) > 0)
         limit 110000) as looked_at
 group by error
 order by count(*) desc, error
 limit 50;

-- choose (group, error, limit)
select d.`id`
  from `app`.`dead` as d
 where d.`group` = %(group)s
   and (%(error)s is null or locate(cast(%(error)s as binary), cast(convert(d.`last_error` using utf8mb4) as binary)) > 0)
 limit %(limit)s;

-- choose, of a list (ids, group, error, limit)
select d.`id`
  from `app`.`dead` as d
 where d.`id` in %(ids)s
   and d.`group` = %(group)s
   and (%(error)s is null or locate(cast(%(error)s as binary), cast(convert(d.`last_error` using utf8mb4) as binary)) > 0)
 limit %(limit)s;

-- stuck (ids)
select q.`id`
  from `app`.`jobs` as q
 where q.`id` in %(ids)s;

-- standing (ids)
select q.`id`
  from `app`.`jobs` as q
 where q.`id` in %(ids)s;

-- take (ids, group, error)
select d.`id`, unhex(sha2(weight_string(d.`partition_key` as char(1024)), 256))
  from `app`.`dead` as d
 where d.`id` in %(ids)s
   and d.`group` = %(group)s
   and (%(error)s is null or locate(cast(%(error)s as binary), cast(convert(d.`last_error` using utf8mb4) as binary)) > 0)
 order by d.`id`
   for update;

-- put_back (ids)
insert into `app`.`jobs` (`id`, `payload`, `headers`, `group`, `partition_key`, `priority`, `retry_after`, `attempt`, `locked_until`, `last_error`)
select d.`id`,
       d.`payload`,
       d.`headers`,
       d.`group`,
       d.`partition_key`,
       d.`priority`,
       null,
       0,
       ifnull(case when d.`locked_until` < utc_timestamp(6) - interval 18000 day then d.`locked_until` end, utc_timestamp(6) + interval 30000003 microsecond - interval 18250 day),
       d.`last_error`
  from `app`.`dead` as d
 where d.`id` in %(ids)s
 order by d.`id`;

-- remove (ids)
delete from `app`.`dead`
 where `id` in %(ids)s;

-- waiting (ids, group)
select d.`id`
  from `app`.`jobs` as d
 where d.`id` in %(ids)s
   and d.`group` = %(group)s;

-- idle (ids, group)
select d.`id`
  from `app`.`jobs` as d
 where d.`id` in %(ids)s
   and d.`group` = %(group)s
   and (d.`locked_until` is null or d.`locked_until` <= utc_timestamp(6))
 order by d.`id`
   for update skip locked;

-- park (ids, reason)
insert into `app`.`dead` ()
select 
  from `app`.`jobs` as d
 where d.`id` in %(ids)s;

-- parked (ids)
delete from `app`.`jobs`
 where `id` in %(ids)s;
