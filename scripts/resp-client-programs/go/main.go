// go-redis against a gateway: `smoke PORT RESTART`.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func want(is bool, what string) {
	if !is {
		log.Fatal("wrong: ", what)
	}
}

func main() {
	port, restart := os.Args[1], os.Args[2]
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	must(client.Ping(ctx).Err())
	must(client.FlushAll(ctx).Err())
	key, value := make([]byte, 128), make([]byte, 256)
	for at := range value {
		value[at] = byte(at)
		key[at/2] = byte(at / 2)
	}
	must(client.Set(ctx, string(key), value, 0).Err())
	got, err := client.Get(ctx, string(key)).Bytes()
	must(err)
	want(bytes.Equal(got, value), "binary")
	_, err = client.Get(ctx, "none").Result()
	want(err == redis.Nil, "an absent key")
	must(client.Incr(ctx, "a").Err())
	err = client.Expire(ctx, "a", time.Second).Err()
	want(err != nil && strings.Contains(err.Error(), "no expiry"), "EXPIRE")
	pipeline := client.Pipeline()
	for number := 0; number < 10000; number++ {
		pipeline.Set(ctx, fmt.Sprintf("key:%05d", number), number, 0)
	}
	_, err = pipeline.Exec(ctx)
	must(err)
	iterator := client.Scan(ctx, 0, "key:*", 900).Iterator()
	found := 0
	for iterator.Next(ctx) {
		want(iterator.Val() == fmt.Sprintf("key:%05d", found), iterator.Val())
		found++
	}
	must(iterator.Err())
	want(found == 10000, "scan")
	must(exec.Command(restart).Run())
	for attempt := 0; ; attempt++ {
		text, err := client.Get(ctx, "key:00100").Result()
		if err == nil {
			want(text == "100", text)
			break
		}
		want(attempt < 50, "no connection after the restart")
		time.Sleep(100 * time.Millisecond)
	}
}
