#!/usr/bin/env bash
# etcd-client: a dead member of the list fails calls that another member would have answered.
#
# Guess:    a client of several etcd members goes on to the next one when a connection is refused: nothing was sent, so
#           nothing can be done twice. etcd's own client in Go does.
# Happens:  the call fails with "tcp connect error". The client puts one lazy connection for each member behind a balancer,
#           which takes a connection that has just failed for ready, and hands its error out as the answer to a request. Fresh
#           clients fail most: a refused connection is known before the others are open.
# Versions: etcd-client 0.21.1 with tonic 0.14 (crates.io), etcd 3.4.23 (Debian 12, etcd-server). Date: 2026-11-28.
# Source:   etcd-client src/client.rs, `connect_with_balanced_channel`; tonic src/transport/channel/service/reconnect.rs, `is_lazy`.
#
# Needs cargo, protoc and etcd. Builds for some minutes. Exits with 0 while it is so, and with 1 once it is not.
set -euo pipefail
for program in cargo protoc etcd; do
    command -v "$program" >/dev/null || { echo "there is no $program" && exit 2; }
done
work=$(mktemp -d)
etcd=
trap '[ -z "$etcd" ] || kill "$etcd"; rm -rf "$work"' EXIT

mkdir "$work/src"
cat >"$work/Cargo.toml" <<'TOML'
[package]
name = "dead-member"
version = "0.0.0"
edition = "2021"

[dependencies]
etcd-client = { version = "=0.21.1", default-features = false }
tokio = { version = "1", features = ["macros", "rt", "time"] }
TOML
cat >"$work/src/main.rs" <<'RUST'
use etcd_client::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let members: Vec<String> = std::env::args().skip(1).collect();
    let (mut fresh, mut later, mut said) = (0, 0, String::new());
    for _ in 0..60 {
        let mut client = Client::connect(&members, None).await.unwrap();
        if let Err(error) = client.get("key", None).await {
            (fresh, said) = (fresh + 1, error.to_string());
        }
    }
    let mut client = Client::connect(&members, None).await.unwrap();
    for _ in 0..60 {
        later += usize::from(client.get("key", None).await.is_err());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    println!("{fresh} of 60 first calls of fresh clients fail, {later} of 60 calls of one client: {said}");
    assert!(said.is_empty() || said.contains("tcp connect error"));
    std::process::exit(i32::from(fresh == 0));
}
RUST

free_ports() {
    python3 -c 'import socket; s = [socket.socket() for _ in range(4)]; [x.bind(("127.0.0.1", 0)) for x in s]
print(*[x.getsockname()[1] for x in s])'
}
read -r first second peers dead < <(free_ports)
# One etcd at two addresses, which stand for two members that are alive.
clients=http://127.0.0.1:$first,http://127.0.0.1:$second
etcd --data-dir "$work/data" --listen-client-urls "$clients" --advertise-client-urls "$clients" \
    --listen-peer-urls "http://127.0.0.1:$peers" --initial-advertise-peer-urls "http://127.0.0.1:$peers" \
    --initial-cluster "default=http://127.0.0.1:$peers" >"$work/etcd.log" 2>&1 &
etcd=$!

etcd --version | head -n 1
(cd "$work" && cargo build --quiet && cargo tree --depth 1 | grep -E 'etcd-client|tokio')
"$work/target/debug/dead-member" "127.0.0.1:$first" "127.0.0.1:$second" "127.0.0.1:$dead"
