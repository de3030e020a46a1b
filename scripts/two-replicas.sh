#!/usr/bin/env bash
# Two gateways, three simulated engines and a Redis, all on this machine: an agent's requests go to both gateways by turns
# and land on one engine, also after Redis is gone. Ends by itself and stops what it started. Needs cargo, curl and
# redis-server.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --quiet --release -p smg -p smg-lab
bin=$(realpath "${CARGO_TARGET_DIR:-target}")/release
logs=$(mktemp -d)
pids=()
leave() {
    kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$logs"
}
trap leave EXIT

wait_for() { # wait_for COMMAND…: until it succeeds, 20 s at most
    for _ in $(seq 200); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "error: waited in vain for: $*" >&2
    exit 1
}

engines=()
for n in 1 2 3; do
    "$bin/lab" engine --port "3110$n" >"$logs/engine$n" 2>&1 & pids+=($!)
    engines+=("http://127.0.0.1:3110$n")
done
redis-server --port 31379 --bind 127.0.0.1 --save '' >"$logs/redis" 2>&1 & redis=$! pids+=($!)
for n in 1 2; do
    "$bin/smg" launch --worker-urls "${engines[@]}" --policy session_affinity --redis-url redis://127.0.0.1:31379 \
        --host 127.0.0.1 --port "3100$n" --prometheus-host 127.0.0.1 --prometheus-port "3120$n" >"$logs/smg$n" 2>&1 &
    pids+=($!)
done
for n in 1 2; do
    wait_for grep -q "sticky store is connected" "$logs/smg$n"
    wait_for curl -sf "http://127.0.0.1:3100$n/readiness"
done

ask() { # ask GATEWAY KEY: which engine answers
    curl -s -o /dev/null -D - "http://127.0.0.1:3100$1/v1/chat/completions" -H "x-aibrix-session-key: $2" \
        -H 'content-type: application/json' -d '{"messages":[{"role":"user","content":"hello"}],"max_tokens":4}' |
        tr -d '\r' | sed -n 's/^x-smg-routed-worker-id: //p'
}

for key in agent-run-1 agent-run-2 agent-run-3; do
    echo "$key: gateway 1 -> $(ask 1 $key), gateway 2 -> $(ask 2 $key)"
done
kill "$redis" && wait "$redis" 2>/dev/null || true
echo "Redis is gone:"
for key in agent-run-1 agent-run-2 agent-run-3; do
    echo "$key: gateway 1 -> $(ask 1 $key), gateway 2 -> $(ask 2 $key)"
done
