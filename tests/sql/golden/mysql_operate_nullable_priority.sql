-- counts (level, undated, past, later)
select undated.seen, undated.held, past.seen, past.held, later.seen, timestampdiff(microsecond, past.oldest, utc_timestamp(6)) / 1e6
  from (select count(*) as seen, cast(ifnull(sum(held), 0) as signed) as held, min(if(held, null, due)) as oldest
  from (select ifnull(c.`locked_until` > utc_timestamp(6), 0) as held, c.`retry_after` as due
          from `app`.`jobs` as c force index (`PRIMARY`)
         where c.`priority` <=> %(level)s and c.`retry_after` is null
         limit %(undated)s) as rows_of_undated) as undated,
       (select count(*) as seen, cast(ifnull(sum(held), 0) as signed) as held, min(if(held, null, due)) as oldest
  from (select ifnull(c.`locked_until` > utc_timestamp(6), 0) as held, c.`retry_after` as due
          from `app`.`jobs` as c force index (`PRIMARY`)
         where c.`priority` <=> %(level)s and c.`retry_after` <= utc_timestamp(6)
         order by c.`priority`, c.`retry_after`, c.`id` limit %(past)s) as rows_of_past) as past,
       (select count(*) as seen, cast(ifnull(sum(held), 0) as signed) as held, min(if(held, null, due)) as oldest
  from (select ifnull(c.`locked_until` > utc_timestamp(6), 0) as held, c.`retry_after` as due
          from `app`.`jobs` as c force index (`PRIMARY`)
         where c.`priority` <=> %(level)s and c.`retry_after` > utc_timestamp(6)
         order by c.`priority`, c.`retry_after`, c.`id` limit %(later)s) as rows_of_later) as later;

-- first_level ()
select c.`priority`
  from `app`.`jobs` as c force index (`PRIMARY`)
 where c.`priority` is not null
 order by c.`priority`, c.`retry_after`, c.`id`
 limit 1;

-- next_level (level)
select c.`priority`
  from `app`.`jobs` as c force index (`PRIMARY`)
 where c.`priority` > %(level)s
 order by c.`priority`, c.`retry_after`, c.`id`
 limit 1;

-- counts_by_id ()
select cast(ifnull(sum(due), 0) as signed),
       cast(ifnull(sum(due and held), 0) as signed),
       cast(ifnull(sum(later), 0) as signed),
       count(*),
       timestampdiff(microsecond, min(if(mine, since, null)), utc_timestamp(6)) / 1e6
  from (select true as mine, true and (c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6)) as due, true and ifnull(c.`retry_after` > utc_timestamp(6), false) as later, ifnull(c.`locked_until` > utc_timestamp(6), 0) as held,
               if((c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6)) and not ifnull(c.`locked_until` > utc_timestamp(6), 0), c.`retry_after`, null) as since
          from `app`.`jobs` as c
         order by c.`id`
         limit 110000) as looked_at;
