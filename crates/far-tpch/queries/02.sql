-- Minimum cost supplier: the cheapest European offers of brass parts of size 15.
WITH offers AS (
    SELECT ps_partkey, ps_supplycost, s_acctbal, s_name, n_name, s_address, s_phone, s_comment
    FROM partsupp
    JOIN supplier ON s_suppkey = ps_suppkey
    JOIN nation ON n_nationkey = s_nationkey
    JOIN region ON r_regionkey = n_regionkey
    WHERE r_name = 'EUROPE'
),
cheapest AS (
    SELECT ps_partkey AS cheapest_part, min(ps_supplycost) AS cost
    FROM offers
    GROUP BY ps_partkey
)
SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
FROM part
JOIN offers ON ps_partkey = p_partkey
JOIN cheapest ON cheapest_part = p_partkey AND ps_supplycost = cost
WHERE p_size = 15 AND p_type LIKE '%BRASS'
ORDER BY s_acctbal DESC, n_name, s_name, p_partkey
LIMIT 100
