-- walk, from the first (group, limit)
select w.`group`,
       unhex(sha2(weight_string(w.`group` as char(255)), 256)),
       sha2(concat('shardrun:fea1708a0e62bfe1:', unhex(sha2(weight_string(w.`group` as char(255)), 256))), 256),
       ifnull(is_used_lock(sha2(concat('shardrun:fea1708a0e62bfe1:', unhex(sha2(weight_string(w.`group` as char(255)), 256))), 256)), connection_id()) <> connection_id(),
       timestampdiff(microsecond, utc_timestamp(6), w.last_due) / 1e6,
       f.`id`,
       0,
       timestampdiff(microsecond, utc_timestamp(6), f.`retry_after`) / 1e6
  from (select d.`group`, ifnull(d.`attempt` > 0, 0) as begun,
               0 as held,
               case when d.`attempt` > 0 then (select max(b.`retry_after`) from `app`.`jobs` as b force index (`in ``order```)
                 where b.`group` = %(group)s
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and b.`retry_after` > utc_timestamp(6)) end as last_due,
               (select b.`id` from `app`.`jobs` as b force index (`in ``order```)
                 where b.`group` = %(group)s
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and (b.`retry_after` is null or b.`retry_after` <= utc_timestamp(6))
                 order by b.`priority`, b.`retry_after`, b.`id` limit 1) as head
          from (select distinct c.`group`, c.`attempt`
            from `app`.`jobs` as c force index (`in ``order```)
           where c.`group` = %(group)s
             and c.`group` is not null
           order by c.`group`, c.`attempt`
           limit %(limit)s) as d
         limit %(limit)s) as w
  left join `app`.`jobs` as f force index (primary)
    on f.`id` = w.head
 order by w.`group`, w.begun desc, f.`priority`, f.`retry_after`, f.`id`;

-- walk (after, group, limit)
select w.`group`,
       unhex(sha2(weight_string(w.`group` as char(255)), 256)),
       sha2(concat('shardrun:fea1708a0e62bfe1:', unhex(sha2(weight_string(w.`group` as char(255)), 256))), 256),
       ifnull(is_used_lock(sha2(concat('shardrun:fea1708a0e62bfe1:', unhex(sha2(weight_string(w.`group` as char(255)), 256))), 256)), connection_id()) <> connection_id(),
       timestampdiff(microsecond, utc_timestamp(6), w.last_due) / 1e6,
       f.`id`,
       0,
       timestampdiff(microsecond, utc_timestamp(6), f.`retry_after`) / 1e6
  from (select d.`group`, ifnull(d.`attempt` > 0, 0) as begun,
               0 as held,
               case when d.`attempt` > 0 then (select max(b.`retry_after`) from `app`.`jobs` as b force index (`in ``order```)
                 where b.`group` = %(group)s
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and b.`retry_after` > utc_timestamp(6)) end as last_due,
               (select b.`id` from `app`.`jobs` as b force index (`in ``order```)
                 where b.`group` = %(group)s
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and (b.`retry_after` is null or b.`retry_after` <= utc_timestamp(6))
                 order by b.`priority`, b.`retry_after`, b.`id` limit 1) as head
          from (select distinct c.`group`, c.`attempt`
            from `app`.`jobs` as c force index (`in ``order```)
           where c.`group` = %(group)s
             and c.`group` > %(after)s
           order by c.`group`, c.`attempt`
           limit %(limit)s) as d
         limit %(limit)s) as w
  left join `app`.`jobs` as f force index (primary)
    on f.`id` = w.head
 order by w.`group`, w.begun desc, f.`priority`, f.`retry_after`, f.`id`;

-- these (strands, strand0, strand1, group, limit)
select w.`group`,
       unhex(sha2(weight_string(w.`group` as char(255)), 256)),
       sha2(concat('shardrun:fea1708a0e62bfe1:', unhex(sha2(weight_string(w.`group` as char(255)), 256))), 256),
       ifnull(is_used_lock(sha2(concat('shardrun:fea1708a0e62bfe1:', unhex(sha2(weight_string(w.`group` as char(255)), 256))), 256)), connection_id()) <> connection_id(),
       timestampdiff(microsecond, utc_timestamp(6), w.last_due) / 1e6,
       f.`id`,
       0,
       timestampdiff(microsecond, utc_timestamp(6), f.`retry_after`) / 1e6
  from (select d.`group`, ifnull(d.`attempt` > 0, 0) as begun,
               0 as held,
               case when d.`attempt` > 0 then (select max(b.`retry_after`) from `app`.`jobs` as b force index (`in ``order```)
                 where b.`group` = %(group)s
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and b.`retry_after` > utc_timestamp(6)) end as last_due,
               (select b.`id` from `app`.`jobs` as b force index (`in ``order```)
                 where b.`group` = %(group)s
                   and b.`group` = d.`group`
                   and b.`attempt` <=> d.`attempt`
                   and (b.`retry_after` is null or b.`retry_after` <= utc_timestamp(6))
                 order by b.`priority`, b.`retry_after`, b.`id` limit 1) as head
          from ((select distinct c.`group`, c.`attempt` from `app`.`jobs` as c force index (`in ``order```)
            where c.`group` = %(group)s and c.`group` in %(strands)s and c.`attempt` > 0)
           union all (select c.`group`, c.`attempt` from `app`.`jobs` as c force index (`in ``order```)
            where c.`group` = %(group)s and c.`group` = %(strand0)s and c.`attempt` = 0 limit 1)
           union all (select c.`group`, c.`attempt` from `app`.`jobs` as c force index (`in ``order```)
            where c.`group` = %(group)s and c.`group` = %(strand0)s and c.`attempt` is null limit 1)
           union all (select c.`group`, c.`attempt` from `app`.`jobs` as c force index (`in ``order```)
            where c.`group` = %(group)s and c.`group` = %(strand1)s and c.`attempt` = 0 limit 1)
           union all (select c.`group`, c.`attempt` from `app`.`jobs` as c force index (`in ``order```)
            where c.`group` = %(group)s and c.`group` = %(strand1)s and c.`attempt` is null limit 1)) as d
         limit %(limit)s) as w
  left join `app`.`jobs` as f force index (primary)
    on f.`id` = w.head
 order by w.`group`, w.begun desc, f.`priority`, f.`retry_after`, f.`id`;

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

-- waiting (group, limit)
select seen, later, held, free, cast(first as char),
       timestampdiff(microsecond, utc_timestamp(6), first) / 1e6,
       if(seen = 0, (select quote(o.`group`) from `app`.`jobs` as o limit 1), null)
  from (select count(*) as seen, count(if(later, 1, null)) as later, count(if(held, 1, null)) as held,
               count(if(later or held, null, 1)) as free, min(if(later, due, null)) as first
          from (select c.`retry_after` as due, ifnull(c.`retry_after` > utc_timestamp(6), 0) as later,
                       0 as held
                  from `app`.`jobs` as c
           where c.`group` = %(group)s
                 order by c.`group`, c.`attempt`, c.`priority`, c.`retry_after`, c.`id`
                 limit %(limit)s) as looked_at) as summed;

-- index ()
create index if not exists `jobs_claim_in_order` on `app`.`jobs` (`group`, `attempt`, `priority`, `retry_after`, `id`);

-- hold (ids, group, limit)
select t.`id`,
       cast(ifnull(t.`attempt`, 0) + 1 as signed),
       t.`partition_key`,
       null,
       cast(t.`group` as char),
       t.`headers`,
       t.`payload`
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s
   and t.`group` = %(group)s
   and (t.`retry_after` is null or t.`retry_after` <= utc_timestamp(6))
 order by t.`id`
 limit %(limit)s
   for update skip locked;

-- rows of no strand (group, avoided, limit)
select seen.id, row_number() over (order by seen.id)
  from (select c.`id` as id,
               c.`priority` as priority,
               c.`retry_after` as retry_after
          from `app`.`jobs` as c
         where c.`group` = %(group)s
           and (c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6))
           and c.`group` is null
           and (c.`id` in %(avoided)s) is not true
         order by c.`priority`, c.`retry_after`, c.`id`
         limit %(limit)s) as seen
 order by seen.priority, seen.retry_after, seen.id;
