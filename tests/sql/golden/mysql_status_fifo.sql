select cast(ifnull(sum(due), 0) as signed),
       cast(ifnull(sum(due and held), 0) as signed),
       cast(ifnull(sum(later), 0) as signed),
       count(*),
       timestampdiff(microsecond, min(if(mine, since, null)), utc_timestamp(6)) / 1e6
  from (select true as mine, true and (c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6)) as due, true and ifnull(c.`retry_after` > utc_timestamp(6), false) as later, ifnull(c.`locked_until` > utc_timestamp(6), 0) as held,
               if((c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6)) and not ifnull(c.`locked_until` > utc_timestamp(6), 0), c.`retry_after`, null) as since
          from `app`.`jobs` as c force index (`PRIMARY`)
         where true
         order by c.`group`, c.`attempt`, c.`priority`, c.`retry_after`, c.`id`
         limit 110000) as looked_at;

select count(b.`id`) over (), seen.more, cast(b.`group` as char), b.`id`, cast(b.`attempt` as signed), timestampdiff(microsecond, utc_timestamp(6), b.`retry_after`) / 1e6, case when b.`locked_until` < utc_timestamp(6) - interval 18000 day then date_format(b.`locked_until` + interval 18250 day - interval 30000000 microsecond, '%%Y-%%m-%%d %%H:%%i:%%s') end, b.`last_error`
  from (select count(*) = 110000 as more
          from (select 1 as one from `app`.`jobs` as c force index (`PRIMARY`)
         where true
         order by c.`group`, c.`attempt`, c.`priority`, c.`retry_after`, c.`id` limit 110000) as walked) as seen
  left join (select id
               from (select id, row_number() over (partition by strand order by begun, o0, o1, o2) as place
                       from (select c.`group` as strand, c.`id` as id, c.`attempt` as begun, ifnull(c.`group` is not null and c.`attempt` > 0 and c.`retry_after` > utc_timestamp(6) and not ifnull(c.`locked_until` > utc_timestamp(6), 0), false) as is_blocking, c.`priority` as o0, c.`retry_after` as o1, c.`id` as o2 from `app`.`jobs` as c force index (`PRIMARY`)
         where true
         order by c.`group`, c.`attempt`, c.`priority`, c.`retry_after`, c.`id` limit 110000) as looked
                      where is_blocking) as rows_of_strands
              where place = 1) as blocking on true
  left join `app`.`jobs` as b on b.`id` = blocking.id
 order by b.`attempt` desc, b.`retry_after` desc, b.`id`
 limit 10;

