-- Small-quantity orders: yearly revenue of orders below a fifth of the part's mean quantity.
WITH means AS (
    SELECT l_partkey AS mean_part, 0.2 * avg(l_quantity) AS least
    FROM lineitem
    GROUP BY l_partkey
)
SELECT sum(l_extendedprice) / 7.0 AS avg_yearly
FROM part
JOIN lineitem ON l_partkey = p_partkey
JOIN means ON mean_part = p_partkey
WHERE p_brand = 'Brand#23' AND p_container = 'MED BOX' AND l_quantity < least
