-- counts ()
select count(*), cast(ifnull(sum(held), 0) as signed)
  from (select ifnull(c.`locked_until` > utc_timestamp(6), 0) as held
          from `app`.`jobs` as c force index (`PRIMARY`)
         where true
         order by c.`id`
         limit 110000) as looked_at;

-- counts_by_id ()
select cast(ifnull(sum(due), 0) as signed),
       cast(ifnull(sum(due and held), 0) as signed),
       cast(ifnull(sum(later), 0) as signed),
       count(*),
       timestampdiff(microsecond, min(if(mine, since, null)), utc_timestamp(6)) / 1e6
  from (select true as mine, true and true as due, true and false as later, ifnull(c.`locked_until` > utc_timestamp(6), 0) as held,
               null as since
          from `app`.`jobs` as c
         order by c.`id`
         limit 110000) as looked_at;
