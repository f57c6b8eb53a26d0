"""Runs the Python client for a test: commands in, results out, one JSON a line. Each command has a thread of its own."""

import json
import sys
import threading

sys.path.insert(0, sys.argv[1])
import agent_governance as svc  # noqa: E402

printing = threading.Lock()
clients = {}


def say(line):
    with printing:
        print(json.dumps(line), flush=True)


def run(n, op, args, options):
    if op == "mask":
        return svc.mask(args[0], args[1])
    if op == "webhook":
        found = svc.verify_webhook(args["secrets"], args["headers"], args["body"], now=args["now"])
        return {"id": found.id, "timestamp": found.timestamp, "event": found.event}
    if op == "open":
        clients[args["name"]] = svc.AgentClient(
            args["baseUrl"], args["key"], tenant=args.get("tenant"), timeout=args["timeout"], retries=args["retries"]
        )
        return [repr(clients[args["name"]]), repr(vars(clients[args["name"]]))]
    client = clients[options["client"]]
    if op == "evaluate":
        return client.evaluate(args)
    if op == "evaluateAll":
        return [fault(one) if isinstance(one, Exception) else one for one in client.evaluate_all(args)]
    if op == "ask":
        return client.ask(args, max_wait=options.get("maxWait"), on_hold=lambda hold: say({"n": n, "hold": hold}))
    if op == "wait":
        return client.wait(args, max_wait=options.get("maxWait"))
    if op == "report":
        return client.report(args["event_id"], args["outcome"], args.get("answer"))
    raise ValueError(op)


def fault(error):
    return {
        "error": type(error).__name__,
        "code": getattr(error, "code", None),
        "text": "%s %r %r" % (error, error, error.__cause__),
        "retryAfter": getattr(error, "retry_after", None),
    }


def work(n, op, args, options):
    try:
        say({"n": n, "result": run(n, op, args, options)})
    except Exception as error:
        say({"n": n, "fault": fault(error)})


for line in sys.stdin:
    command = json.loads(line)
    threading.Thread(
        target=work, args=(command["n"], command["op"], command["args"], command.get("options") or {}), daemon=True
    ).start()
