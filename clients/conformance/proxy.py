"""A TCP proxy in front of the standalone server, which can lose replies, delay them, and stop reading."""

import asyncio
import threading
import time


class Proxy:
    def __init__(self, target):
        self.host, self.port = target.rsplit(":", 1)
        self.connections = set()
        self.accepted = 0
        self.open = set()  # the numbers of the connections that clients have not closed
        self.kept = []  # to whom, what
        self._reset()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.address = self._do(self._listen())

    def _reset(self):
        self.cuts = []  # [name of a command, how often]
        self.mutes = []  # the same; the command is executed, but its connection sends nothing from then on
        self.keeps = []  # the same; the server does not get the command before `deliver`
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
                case "mute":
                    self.mutes.append([step["of"].lower().encode(), step.get("times", 1)])
                case "keep":
                    self.keeps.append([step["of"].lower().encode(), step.get("times", 1)])
                case "kept":
                    while not self.kept:
                        await asyncio.sleep(0.01)
                case "deliver":
                    for back, chunk in self.kept:
                        back.write(chunk)
                    self.kept.clear()
                case "deaf":
                    self.deaf = True
                case "late":
                    self.delay = step["ms"] / 1000
                case "drop":
                    self._close_all()
                case "heal":
                    if self.deaf:
                        self._close_all()
                    self._reset()
                case other:
                    raise ValueError(f"the proxy knows no fault {other!r}")

        self._do(act())

    async def _silence(self):
        """Waits until the silenced connections are closed."""
        while self.deaf:
            await asyncio.sleep(0.05)
        raise ConnectionError

    def _close_all(self):
        for writer in self.connections:
            writer.transport.abort()
        self.connections.clear()

    def _is_cut(self, name, chunk):
        return self._strikes(self.cuts, name, chunk)

    @staticmethod
    def _strikes(faults, name, chunk):
        for fault in faults:
            if fault[0] == name or (name is None and fault[0] in chunk.lower()):
                fault[1] -= 1
                faults[:] = [each for each in faults if each[1] > 0]
                return True
        return False

    async def _serve(self, reader, writer):
        self.connections.add(writer)
        self.accepted += 1
        number = self.accepted
        self.open.add(number)
        tasks = []
        try:
            if self.deaf:
                await self._silence()
            there, back = await asyncio.open_connection(self.host, self.port)
            self.connections.add(back)
            doomed = [False]  # the next reply on this connection is lost
            muted = [False]
            tasks = [
                asyncio.ensure_future(self._pass(reader, back, doomed, True, muted)),
                asyncio.ensure_future(self._pass(there, writer, doomed, False, muted)),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.open.discard(number)
            for task in tasks:
                task.cancel()
            for end in (writer, *([back] if tasks else [])):
                self.connections.discard(end)
                # Kept requests can still be delivered after their client has disconnected.
                if not any(end is back for back, _ in self.kept):
                    end.transport.abort()

    async def _pass(self, source, sink, doomed, is_request, muted):
        queue = asyncio.Queue()
        sender = asyncio.ensure_future(self._send(queue, sink))
        try:
            while chunk := await source.read(65536):
                if self.deaf:
                    await self._silence()
                if is_request and self._strikes(self.keeps, None, chunk):
                    muted[0] = True
                    self.kept.append((sink, chunk))
                    continue
                if is_request and self._strikes(self.mutes, None, chunk):
                    muted[0] = True
                if muted[0] and not is_request:
                    continue
                if is_request:
                    doomed[0] = doomed[0] or self._is_cut(None, chunk)
                elif doomed[0] or self._is_cut(b"a reply", chunk):
                    return
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
