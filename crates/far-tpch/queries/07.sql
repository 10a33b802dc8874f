-- Volume shipping: trade between France and Germany by year.
WITH shipping AS (
    SELECT
        seller.n_name AS supp_nation,
        buyer.n_name AS cust_nation,
        extract(year FROM l_shipdate) AS l_year,
        l_extendedprice * (1 - l_discount) AS volume
    FROM supplier
    JOIN nation AS seller ON seller.n_nationkey = s_nationkey
    JOIN lineitem ON l_suppkey = s_suppkey
    JOIN orders ON o_orderkey = l_orderkey
    JOIN customer ON c_custkey = o_custkey
    JOIN nation AS buyer ON buyer.n_nationkey = c_nationkey
    WHERE seller.n_name IN ('FRANCE', 'GERMANY')
        AND buyer.n_name IN ('FRANCE', 'GERMANY')
        AND seller.n_name <> buyer.n_name
        AND l_shipdate BETWEEN date '1995-01-01' AND date '1996-12-31'
)
SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue
FROM shipping
GROUP BY supp_nation, cust_nation, l_year
ORDER BY supp_nation, cust_nation, l_year
