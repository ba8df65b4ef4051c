-- walk, from the first (limit)
select w.`group`,
       unhex(sha2(weight_string(w.`group` as char(255)), 256)),
       sha2(concat('shardrun:fea1708a0e62bfe1:', unhex(sha2(weight_string(w.`group` as char(255)), 256))), 256),
       w.held,
       timestampdiff(microsecond, utc_timestamp(6), w.last_due) / 1e6,
       f.`id`,
       ifnull(f.`locked_until` > utc_timestamp(6), 0),
       null
  from (select d.`group`, ifnull(d.`attempt` > 0, 0) as begun,
               case when d.`attempt` > 0 then exists (select 1 from `app`.`jobs` as b force index (`in ``order```)
                 where b.`processed_at` is null
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and b.`locked_until` > utc_timestamp(6)) else 0 end as held,
               null as last_due,
               (select b.`id` from `app`.`jobs` as b force index (`in ``order```)
                 where b.`processed_at` is null
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and (b.`locked_until` is null or b.`locked_until` <= utc_timestamp(6))
                 order by b.`id` limit 1) as head
          from (select distinct c.`processed_at`, c.`group`, c.`attempt`
            from `app`.`jobs` as c force index (`in ``order```)
           where c.`processed_at` is null
             and c.`group` is not null
           order by c.`processed_at`, c.`group`, c.`attempt`
           limit %(limit)s) as d
         limit %(limit)s) as w
  left join `app`.`jobs` as f force index (primary)
    on f.`id` = w.head
 order by w.`group`, w.begun desc, f.`id`;

-- walk (after, limit)
select w.`group`,
       unhex(sha2(weight_string(w.`group` as char(255)), 256)),
       sha2(concat('shardrun:fea1708a0e62bfe1:', unhex(sha2(weight_string(w.`group` as char(255)), 256))), 256),
       w.held,
       timestampdiff(microsecond, utc_timestamp(6), w.last_due) / 1e6,
       f.`id`,
       ifnull(f.`locked_until` > utc_timestamp(6), 0),
       null
  from (select d.`group`, ifnull(d.`attempt` > 0, 0) as begun,
               case when d.`attempt` > 0 then exists (select 1 from `app`.`jobs` as b force index (`in ``order```)
                 where b.`processed_at` is null
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and b.`locked_until` > utc_timestamp(6)) else 0 end as held,
               null as last_due,
               (select b.`id` from `app`.`jobs` as b force index (`in ``order```)
                 where b.`processed_at` is null
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and (b.`locked_until` is null or b.`locked_until` <= utc_timestamp(6))
                 order by b.`id` limit 1) as head
          from (select distinct c.`processed_at`, c.`group`, c.`attempt`
            from `app`.`jobs` as c force index (`in ``order```)
           where c.`processed_at` is null
             and c.`group` > %(after)s
           order by c.`processed_at`, c.`group`, c.`attempt`
           limit %(limit)s) as d
         limit %(limit)s) as w
  left join `app`.`jobs` as f force index (primary)
    on f.`id` = w.head
 order by w.`group`, w.begun desc, f.`id`;

-- these (strands, strand0, strand1, limit)
select w.`group`,
       unhex(sha2(weight_string(w.`group` as char(255)), 256)),
       sha2(concat('shardrun:fea1708a0e62bfe1:', unhex(sha2(weight_string(w.`group` as char(255)), 256))), 256),
       w.held,
       timestampdiff(microsecond, utc_timestamp(6), w.last_due) / 1e6,
       f.`id`,
       ifnull(f.`locked_until` > utc_timestamp(6), 0),
       null
  from (select d.`group`, ifnull(d.`attempt` > 0, 0) as begun,
               case when d.`attempt` > 0 then exists (select 1 from `app`.`jobs` as b force index (`in ``order```)
                 where b.`processed_at` is null
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and b.`locked_until` > utc_timestamp(6)) else 0 end as held,
               null as last_due,
               (select b.`id` from `app`.`jobs` as b force index (`in ``order```)
                 where b.`processed_at` is null
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and (b.`locked_until` is null or b.`locked_until` <= utc_timestamp(6))
                 order by b.`id` limit 1) as head
          from ((select distinct c.`group`, c.`attempt` from `app`.`jobs` as c force index (`in ``order```)
            where c.`processed_at` is null and c.`group` in %(strands)s and c.`attempt` > 0)
           union all (select c.`group`, c.`attempt` from `app`.`jobs` as c force index (`in ``order```)
            where c.`processed_at` is null and c.`group` = %(strand0)s and c.`attempt` = 0 limit 1)
           union all (select c.`group`, c.`attempt` from `app`.`jobs` as c force index (`in ``order```)
            where c.`processed_at` is null and c.`group` = %(strand1)s and c.`attempt` = 0 limit 1)) as d
         limit %(limit)s) as w
  left join `app`.`jobs` as f force index (primary)
    on f.`id` = w.head
 order by w.`group`, w.begun desc, f.`id`;

-- guard (name0, name1)
select get_lock(%(name0)s, 0), get_lock(%(name1)s, 0);

-- strands of rows (ids)
select t.`id`, unhex(sha2(weight_string(t.`group` as char(255)), 256))
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s;

-- guard of a row (id)
select if(t.`group` is null, null, sha2(concat('shardrun:fea1708a0e62bfe1:', unhex(sha2(weight_string(t.`group` as char(255)), 256))), 256))
  from `app`.`jobs` as t force index (primary)
 where t.`id` = %(id)s;

-- unlock ()
do release_all_locks();

-- waiting (limit)
select seen, later, held, free, cast(first as char),
       timestampdiff(microsecond, utc_timestamp(6), first) / 1e6,
       if(seen = 0, null, null)
  from (select count(*) as seen, count(if(later, 1, null)) as later, count(if(held, 1, null)) as held,
               count(if(later or held, null, 1)) as free, min(if(later, due, null)) as first
          from (select null as due, ifnull(null > utc_timestamp(6), 0) as later,
                       ifnull(c.`locked_until` > utc_timestamp(6), 0) as held
                  from `app`.`jobs` as c
           where c.`processed_at` is null
                 order by c.`group`, c.`attempt`, c.`id`
                 limit %(limit)s) as looked_at) as summed;

-- index ()
create index if not exists `jobs_claim_in_order` on `app`.`jobs` (`processed_at`, `group`, `attempt`, `id`);

-- take (ids)
select c.`id`,
       ifnull(c.`locked_until` >= '1900-01-01', 0),
       cast(cast(greatest(utc_timestamp(6) + interval 30000002 - mod(microsecond(utc_timestamp(6)), 2) microsecond,
           case when c.`locked_until` >= '1900-01-01'
                then c.`locked_until` + interval 2 - mod(microsecond(c.`locked_until`), 2) microsecond
                when c.`locked_until` >= '1000-01-01'
                then c.`locked_until` + interval 365000 day + interval 2 - mod(microsecond(c.`locked_until`), 2) microsecond
                else utc_timestamp(6) end) as datetime(6)) as char),
       cast(ifnull(c.`attempt`, 0) + 1 as signed),
       null,
       null,
       cast(c.`group` as char),
       null,
       null,
       c.`id`,
       c.`group`,
       c.`locked_until`,
       c.`processed_at`,
       c.`attempt`
  from `app`.`jobs` as c force index (primary)
 where c.`id` in %(ids)s
   and c.`processed_at` is null
   and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
 order by c.`id`
   for update skip locked;

-- rows of no strand (avoided, limit)
select c.`id`
  from `app`.`jobs` as c
 where c.`processed_at` is null
   and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
   and c.`group` is null
   and (c.`id` in %(avoided)s) is not true
 order by c.`id`
 limit %(limit)s;

-- take rows of no strand (ids)
select c.`id`,
       ifnull(c.`locked_until` >= '1900-01-01', 0),
       cast(cast(greatest(utc_timestamp(6) + interval 30000002 - mod(microsecond(utc_timestamp(6)), 2) microsecond,
           case when c.`locked_until` >= '1900-01-01'
                then c.`locked_until` + interval 2 - mod(microsecond(c.`locked_until`), 2) microsecond
                when c.`locked_until` >= '1000-01-01'
                then c.`locked_until` + interval 365000 day + interval 2 - mod(microsecond(c.`locked_until`), 2) microsecond
                else utc_timestamp(6) end) as datetime(6)) as char),
       cast(ifnull(c.`attempt`, 0) + 1 as signed),
       null,
       null,
       cast(c.`group` as char),
       null,
       null,
       c.`id`,
       c.`group`,
       c.`locked_until`,
       c.`processed_at`,
       c.`attempt`
  from `app`.`jobs` as c force index (primary)
 where c.`id` in %(ids)s
   and c.`processed_at` is null
   and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
   and c.`group` is null
 order by c.`id`
   for update skip locked;
