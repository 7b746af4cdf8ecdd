"""A bill of materials (CycloneDX 1.5, JSON) of what is linked into a package of the workspace, from `cargo metadata`.

    sbom.py PACKAGE TRIPLE RUST-VERSION ZIG-VERSION [ALSO-FROM-ZIG...]
        < the output of cargo metadata --filter-platform TRIPLE

The bill lists only what is in the binary: no build scripts, no crates that only macros or tests use. The same input
gives the same bytes, because the bill has no time and no random serial number.
"""

import json
import sys
import tomllib


def main(package: str, triple: str, rust: str, zig: str, *also_from_zig: str) -> None:
    metadata = json.load(sys.stdin)
    packages = {each["id"]: each for each in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = next(id for id, each in packages.items() if each["name"] == package)
    with open("Cargo.lock", "rb") as file:
        locked = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(file)["package"]}

    needs = {}
    open_ids = [root]
    while open_ids:
        id = open_ids.pop()
        if id in needs:
            continue
        needs[id] = sorted({dep["pkg"] for dep in nodes[id]["deps"] if is_linked(dep, packages)})
        open_ids.extend(needs[id])

    refs = {id: purl(packages[id]) for id in needs}
    components = [component(packages[id], locked) for id in sorted(needs, key=refs.get) if id != root]
    is_program = any("bin" in target["kind"] for target in packages[root]["targets"])
    main_component = component(packages[root], locked) | {"type": "application" if is_program else "library"}
    compilers = [came_along("rust-std", rust), *(came_along(name, zig) for name in ("libunwind-of-zig", *also_from_zig))]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": main_component,
            "properties": [{"name": "rlock:target", "value": triple}],
        },
        "components": components + compilers,
        "dependencies": [
            {"ref": refs[id], "dependsOn": sorted(refs[need] for need in needs[id])}
            for id in sorted(needs, key=refs.get)
        ],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


def is_linked(dependency: dict, packages: dict) -> bool:
    """Whether this is a normal dependency (its kind is null) and not a macro: macros run in the compiler."""
    is_normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
    targets = packages[dependency["pkg"]]["targets"]
    return is_normal and not any("proc-macro" in target["kind"] for target in targets)


def purl(package: dict) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: dict, locked: dict) -> dict:
    found = {
        "type": "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(package),
    }
    if package["license"]:
        # Old crates write a slash instead of OR.
        expression = package["license"].replace(" / ", " OR ").replace("/", " OR ")
        found["licenses"] = [{"expression": expression}]
    checksum = locked.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


def came_along(name: str, version: str) -> dict:
    """A component that the compiler or the linker adds: it is not a crate, so cargo does not know it."""
    return {"type": "library", "bom-ref": f"pkg:generic/{name}@{version}", "name": name, "version": version}


main(*sys.argv[1:])
