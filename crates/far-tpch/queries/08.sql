-- National market share: Brazil's part of America's purchases of one type of part.
WITH purchases AS (
    SELECT
        extract(year FROM o_orderdate) AS o_year,
        l_extendedprice * (1 - l_discount) AS volume,
        seller.n_name AS nation
    FROM part
    JOIN lineitem ON l_partkey = p_partkey
    JOIN supplier ON s_suppkey = l_suppkey
    JOIN nation AS seller ON seller.n_nationkey = s_nationkey
    JOIN orders ON o_orderkey = l_orderkey
    JOIN customer ON c_custkey = o_custkey
    JOIN nation AS buyer ON buyer.n_nationkey = c_nationkey
    JOIN region ON r_regionkey = buyer.n_regionkey
    WHERE r_name = 'AMERICA'
        AND p_type = 'ECONOMY ANODIZED STEEL'
        AND o_orderdate BETWEEN date '1995-01-01' AND date '1996-12-31'
)
SELECT
    o_year,
    sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS mkt_share
FROM purchases
GROUP BY o_year
ORDER BY o_year
