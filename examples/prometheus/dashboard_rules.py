"""Prints the dashboard's queries as a file of rules, which promtool can check."""

import json
import pathlib

PANELS = json.loads(pathlib.Path(__file__).with_name("grafana-dashboard.json").read_text())["panels"]


def queries():
    """Each query, with Grafana's variables replaced by values."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m").replace("$server", ".*")


if __name__ == "__main__":
    rules = [{"record": f"dashboard:{at}", "expr": query} for at, query in enumerate(queries())]
    print(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
