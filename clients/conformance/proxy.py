"""A TCP proxy in front of the standalone server, which can lose replies, be late, and be deaf."""

import asyncio
import threading
import time


class Held:
    """A request that is on its way."""

    def __init__(self):
        self.may_pass, self.is_executed = asyncio.Event(), asyncio.Event()


class State:
    """Of a connection."""

    is_doomed = False  # the next reply is lost
    held = None


class Proxy:
    def __init__(self, target):
        self.host, self.port = target.rsplit(":", 1)
        self.connections = set()
        self._reset()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.address = self._do(self._listen())

    def _reset(self):
        self.cuts = []  # [name of a command, how often]
        self.holds = []  # the same
        self.held = []  # what the server has not got yet
        self.delay = 0.0
        self.deaf = False

    def _do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    async def _listen(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        return "127.0.0.1:%d" % server.sockets[0].getsockname()[1]

    def fault(self, step):
        async def act():
            match step["proxy"]:
                case "cut":
                    self.cuts.append([step["of"].lower().encode(), step.get("times", 1)])
                case "hold":
                    self.holds.append([step["of"].lower().encode(), step.get("times", 1)])
                case "pass":
                    await self._pass_held()
                case "uncut":
                    self.cuts = []
                case "deaf":
                    self.deaf = True
                case "late":
                    self.delay = step["ms"] / 1000
                case "drop":
                    self._close_all()
                case "heal":
                    if self.deaf:
                        self._close_all()
                    await self._pass_held()
                    self._reset()
                case other:
                    raise ValueError(f"the proxy knows no fault {other!r}")

        self._do(act())

    async def _silence(self):
        """Until the connections that were deaf are closed."""
        while self.deaf:
            await asyncio.sleep(0.05)
        raise ConnectionError

    def _close_all(self):
        for writer in self.connections:
            writer.transport.abort()
        self.connections.clear()

    async def _pass_held(self):
        held, self.held, self.holds = self.held, [], []
        for one in held:
            one.may_pass.set()
            await one.is_executed.wait()

    def _is_one(self, faults, name, chunk):
        for fault in faults:
            if fault[0] == name or (name is None and fault[0] in chunk.lower()):
                fault[1] -= 1
                if fault[1] <= 0:
                    faults.remove(fault)
                return True
        return False

    async def _serve(self, reader, writer):
        self.connections.add(writer)
        tasks = []
        try:
            if self.deaf:
                await self._silence()
            there, back = await asyncio.open_connection(self.host, self.port)
            self.connections.add(back)
            state = State()
            tasks = [
                asyncio.ensure_future(self._pass(reader, back, state, True)),
                asyncio.ensure_future(self._pass(there, writer, state, False)),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for task in tasks:
                task.cancel()
            if tasks and state.held:
                state.held.is_executed.set()  # or it never will be
            for end in (writer, *([back] if tasks else [])):
                self.connections.discard(end)
                end.transport.abort()

    async def _pass(self, source, sink, state, is_request):
        queue = asyncio.Queue()
        sender = asyncio.ensure_future(self._send(queue, sink))
        try:
            while chunk := await source.read(65536):
                if self.deaf:
                    await self._silence()
                if is_request:
                    if self._is_one(self.holds, None, chunk):
                        state.held = Held()
                        self.held.append(state.held)
                        await state.held.may_pass.wait()  # also when the client has closed the connection meanwhile
                        queue.put_nowait((0, chunk))
                        await state.held.is_executed.wait()
                        continue
                    state.is_doomed = state.is_doomed or self._is_one(self.cuts, None, chunk)
                elif state.is_doomed or self._is_one(self.cuts, b"a reply", chunk):
                    return
                elif state.held:
                    state.held.is_executed.set()
                    state.held = None
                queue.put_nowait((time.monotonic() + (0 if is_request else self.delay), chunk))
            queue.put_nowait(None)
            await sender
        except OSError:
            pass
        finally:
            sender.cancel()

    async def _send(self, queue, sink):
        while (item := await queue.get()) is not None:
            await asyncio.sleep(max(0.0, item[0] - time.monotonic()))
            sink.write(item[1])
            await sink.drain()
