# Shortcuts only: each target runs a script in scripts/. `make` lists those for daily work, `make help-all` lists all.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' Makefile)

help:
	@awk -F ':.*## ' '/^##@ / { exit } /^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile
	@printf 'make %-14s %s\n' help-all 'the other targets: proofs, speed, clients, releases'

help-all:
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

build: ## the module: target/release/librlock.so
	@scripts/setup.sh && . .tools/env && cargo build --release --locked

run: ## build, then start a server with the module on port 6380, in the foreground, with its data in .tools/run
	@scripts/run.sh

check: ## while you work: formatting, clippy, the core's tests
	@scripts/test.sh check

test: ## everything a change must pass: formatting, clippy, the core's tests, the tests against a real server
	@scripts/test.sh

demo: ## ten seconds of locks in this terminal, on a private server
	@scripts/demo.sh

clean: ## remove everything that was built or fetched, and the data of `make run`
	@rm -rf target .tools

##@ Proof: the core and the simulation

lint: ## formatting and clippy only
	@scripts/test.sh lint

mutants: ## deliberate faults, one at a time: each must make a named test fail
	@scripts/mutants.sh

model: ## every state of a model with a few locks and owners, more than ten million states (STATES)
	@scripts/model.sh

simulate: ## primaries, replicas, clients and failover in one process, 10^8 steps (STEPS, SEED)
	@STEPS="$(or $(STEPS),100000000)" SEED="$(SEED)" scripts/simulate.sh

simulate-users: ## the state machine of the client packages with silent, slow and dying servers, 10^7 steps (STEPS, SEED)
	@STEPS="$(or $(STEPS),10000000)" SEED="$(SEED)" scripts/simulate.sh users

traces: ## COUNT traces (5000) for the client packages to replay, on standard output (SEED, PLANTED)
	@scripts/simulate.sh traces "$(or $(COUNT),5000)" "$(or $(SEED),1)" "$(or $(PLANTED),Nothing)"

fuzz: ## random bytes as commands, locks and histories, with cargo-fuzz or on stable Rust (RUNS, SECONDS)
	@scripts/fuzz.sh $(or $(RUNS),10000000) $(or $(SECONDS),0)

##@ Proof: real servers

matrix: ## the server tests on ten servers (SERVERS, TEST, RLOCK_MORE_SERVERS: docs/servers.md)
	@SERVERS="$(SERVERS)" TEST="$(TEST)" scripts/matrix.sh

matrix-table: ## the results of the last `make matrix`, as rows for docs/servers.md
	@scripts/matrix.sh table

differential: ## the simulated server compared with a real one, command by command (COMMANDS, SEED, SERVERS)
	@COMMANDS="$(COMMANDS)" SEED="$(SEED)" SERVERS="$(SERVERS)" scripts/differential.sh

abuse: ## a million of everything, on a server with the C library's malloc: nothing may be left behind (TIMES)
	@scripts/abuse.sh

torture: ## real servers under load and faults, every history checked (SECONDS, SEED, FAULT, WORKLOAD)
	@RLOCK_SECONDS="$(SECONDS)" scripts/torture.sh

permits: ## 1000 workers share ten permits while holders are killed (SECONDS on each of SERVERS, SEED; RIVAL=1)
	@RLOCK_SECONDS="$(SECONDS)" SERVERS="$(SERVERS)" SEED="$(SEED)" scripts/permits.sh $(if $(RIVAL),redisson)

failovers: ## the primary is killed repeatedly: everything that ACKS confirmed must survive (FAILOVERS, SERVERS, VARIANT; GRACE=1, RIVALS=1)
	@FAILOVERS="$(FAILOVERS)" SERVERS="$(SERVERS)" VARIANT="$(VARIANT)" SEED="$(SEED)" \
		scripts/failovers.sh $(if $(GRACE),grace,$(if $(RIVALS),rivals))

chaos: ## busy sessions on servers with I/O threads, while DEL and RLOCK.FORCE end their holds (SECONDS on each of SERVERS)
	@RLOCK_SECONDS="$(SECONDS)" scripts/chaos.sh

moves: ## a slot of a cluster moves 50 times (MOVES) while clients wait for its locks
	@scripts/moves.sh

groups: ## 100 000 requests (GROUPS) for several of 1000 locks, mixed with other requests; reads on a replica during 10^5 grants
	@RLOCK_GROUPS="$(or $(GROUPS),100000)" scripts/groups.sh

orders: ## everything of images/ dies and starts again in every order, every pod is replaced, disks and memory are full (SERVERS, SEEDS, WORDS, JOBS; SHORT=1; root)
	@SERVERS="$(SERVERS)" SEEDS="$(SEEDS)" WORDS="$(WORDS)" JOBS="$(or $(JOBS),2)" scripts/orders.sh $(if $(SHORT),short)

observers: ## hand-offs while 10 000 connections observe the lock, on a quiet machine
	@scripts/observers.sh

valgrind: ## the server tests under valgrind: memory errors and leaks
	@scripts/valgrind.sh

##@ Speed

bench: ## RLOCK compared with its alternatives: docs/benchmarks.md (QUICK=1; SERVERS="default valkey-9.1")
	@scripts/bench.sh

bench-wait: ## how long jobs that arrive at random wait for a lock, by RLOCK and by others, and what locks cost a cache's server (LOADS, PEERS, QUICK=1)
	@LOADS="$(LOADS)" PEERS="$(PEERS)" scripts/bench.sh wait

bench-tell: ## waits with TELL compared with BLOCK, QUEUE, PING and WAIT, and a hundred thousand of them (SERVERS, QUICK=1)
	@scripts/bench.sh tell

bench-gate: ## allocations and instructions compared with the recorded ones (RECORD=1 records new ones), also while 10 000 others hold or wait
	@scripts/bench.sh gate

clients-bench: ## the cost of acquiring and releasing a free lock in each package, compared with the bare commands
	@scripts/clients.sh bench

##@ Clients, examples and pictures

clients: ## build the client packages of each language, into .tools/clients
	@scripts/clients.sh build

clients-test: ## the packages' own tests, other projects' suites and the conformance script (SERVERS="default valkey-9.1")
	@scripts/clients.sh test

clients-results: ## the results of the conformance script on Redis 7.0 and Valkey 9.1 (SERVERS), in RESULTS.md (LANGUAGE, ONLY)
	@SERVERS="$(SERVERS)" ONLY="$(ONLY)" ON="$(ON)" JOBS="$(JOBS)" scripts/clients.sh results $(LANGUAGE)

clients-users: ## the conformance script's short form as the documented user, without TLS and with it (SERVERS, LANGUAGE)
	@SERVERS="$(SERVERS)" ONLY="$(ONLY)" JOBS="$(JOBS)" scripts/clients.sh users $(LANGUAGE)

clients-replay: ## COUNT traces (5000) replayed in each language; traces of a machine with a broken rule must fail (SEED, LANGUAGE)
	@COUNT="$(COUNT)" SEED="$(SEED)" scripts/clients.sh replay $(LANGUAGE)

storm: ## 200 workers of each package under cuts, silence, kills and cancellations (SECONDS=180, LANGUAGE)
	@STORM="$(SECONDS)" scripts/clients.sh storm $(LANGUAGE)

rolling: ## a FastAPI, an Express and a Spring Boot service under load, restarted one instance at a time (SECONDS=180 each, LANGUAGE)
	@STORM="$(SECONDS)" scripts/clients.sh rolling $(LANGUAGE)

examples: ## each language's example, with its own client, on a private server
	@scripts/examples.sh

page: ## the rlock serve page in a headless browser; screenshots in target/page
	@scripts/page.sh fetch

pictures: ## the pictures in docs/pictures, drawn from real runs
	@scripts/pictures.sh

##@ Releases

install: ## install the module into PREFIX/lib/rlock (PREFIX=/usr, DESTDIR)
	@scripts/install.sh

audit: ## licenses, sources, bans and known vulnerabilities of the dependencies
	@scripts/audit.sh

release: ## the module for four platforms, each checked and loaded by a server of its platform (PLATFORMS)
	@scripts/release.sh $(PLATFORMS)

packages: ## .deb and .rpm for x86-64 and arm64, in target/dist
	@scripts/packages.sh

packages-try: ## install, use, upgrade and remove the packages in clean Debian systems with systemd (root)
	@scripts/packages-try.sh

images: ## lint the image, compose and Kubernetes files, and execute the Dockerfile's steps without Docker (root)
	@scripts/images.sh

images-build: ## the images of Redis 8 and Valkey 9, for Debian and Alpine, with Docker
	@scripts/images.sh build

dist: ## an archive for each platform: module, programs, settings, docs, examples, SBOM, checksums (PLATFORMS)
	@scripts/dist.sh $(PLATFORMS)

reproducible: ## build packages and archives twice, in two folders, and compare the bytes (PLATFORMS)
	@scripts/reproducible.sh $(PLATFORMS)

msrv: ## build with the oldest Rust that Cargo.toml promises
	@scripts/msrv.sh
