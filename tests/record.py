"""Records the request bodies that SDKs write, for crates/gateway/tests/gateway/recorded.

    .venv/bin/python tests/record.py        (after ./test has installed the SDKs)
"""

import http.server
import json
import pathlib
import subprocess
import threading

import anthropic
import openai

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent / "crates/gateway/tests/gateway/recorded"
SYSTEM = "You answer questions about tides. " * 40
TURNS = [
    [{"role": "user", "content": "When is high water at Ålesund today?"}],
    [
        {"role": "user", "content": "When is high water at Ålesund today?"},
        {"role": "assistant", "content": "At 14:02, and again at 02:31."},
        {"role": "user", "content": "And \"spring tide\"?\n\tTell me \U0001f30a."},
    ],
]
TOOL = {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]}
NODE = """
import OpenAI from 'openai';
const [url, system, turns] = process.argv.slice(1);
const client = new OpenAI({ baseURL: url + '/v1', apiKey: 'none', maxRetries: 0 });
for (const turn of JSON.parse(turns)) {
  const messages = [{ role: 'system', content: system }, ...turn];
  await client.chat.completions.create({ messages, model: 'm', stream: false, rid: 'conv' }).catch(() => {});
}
"""
recorded = []


class Keeper(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        recorded.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(400)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def keep(name):
    for turn, body in enumerate(recorded, 1):
        json.loads(body)
        (OUT / f"{name}-{turn}.json").write_bytes(body)
    recorded.clear()


def quietly(call, **arguments):
    try:
        call(**arguments)
    except (openai.APIError, anthropic.APIError):
        pass


def main():
    OUT.mkdir(exist_ok=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keeper)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"

    python = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tools = [{"type": "function", "function": {"name": "tide", "parameters": TOOL}}]
    for turn in TURNS:
        messages = [{"role": "system", "content": SYSTEM}, *turn]
        quietly(python.chat.completions.create, model="m", messages=messages, tools=tools, stream=True,
                extra_body={"rid": "conv"})
    keep("openai-python")

    claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    for turn in TURNS:
        quietly(claude.messages.create, model="m", max_tokens=64, system=SYSTEM, messages=turn, stream=True,
                tools=[{"name": "tide", "input_schema": TOOL}], extra_body={"rid": "conv"})
    keep("anthropic-python")

    subprocess.run(["node", "--input-type=module", "-e", NODE, url, SYSTEM, json.dumps(TURNS)],
                   cwd=HERE / "sdk/node", check=True)
    keep("openai-node")


if __name__ == "__main__":
    main()
