"""Streams tokens over HTTP/2 and gRPC as testdata/h2server does, but over TLS: OpenSSL terminates it, in memory, as
asyncio has it, or on the socket. Needs the package h2.

Usage: server.py CERT KEY memory|socket
Prints its port.
"""

import asyncio
import json
import socket
import ssl
import struct
import sys
import time

import h2.config
import h2.connection
import h2.events
import h2.settings


def context():
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    c.load_cert_chain(sys.argv[1], sys.argv[2])
    c.set_alpn_protocols(["h2"])
    return c


class Memory:
    """A connection whose TLS asyncio does in memory."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def receive(self):
        return await self.reader.read(65536)

    def send(self, data):
        self.writer.write(data)

    def close(self):
        self.writer.close()


class Socket:
    """A connection whose TLS OpenSSL does on the socket."""

    def __init__(self, sock):
        self.sock, self.out, self.want = sock, b"", asyncio.Event()
        sock.setblocking(False)
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(sock.fileno(), self.want.set)

    async def shake(self):
        while True:
            try:
                return self.sock.do_handshake()
            except ssl.SSLWantReadError:
                await self.wait()

    async def wait(self):
        self.want.clear()
        await self.want.wait()

    async def receive(self):
        while True:
            try:
                return self.sock.recv(65536)
            except ssl.SSLWantReadError:
                await self.wait()

    def send(self, data):
        self.out += data
        try:
            while self.out:
                self.out = self.out[self.sock.send(self.out):]
        except ssl.SSLWantWriteError:
            self.loop.call_later(0.001, self.send, b"")

    def close(self):
        self.loop.remove_reader(self.sock.fileno())
        self.sock.close()


class Connection:
    def __init__(self, transport):
        self.transport = transport
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.local_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 1000
        self.headers, self.bodies, self.room = {}, {}, asyncio.Event()

    def flush(self):
        if data := self.h2.data_to_send():
            self.transport.send(data)

    async def serve(self):
        tasks = {}
        self.h2.initiate_connection()
        self.flush()
        try:
            while data := await self.transport.receive():
                for e in self.h2.receive_data(data):
                    match e:
                        case h2.events.RequestReceived():
                            self.headers[e.stream_id], self.bodies[e.stream_id] = dict(e.headers), b""
                        case h2.events.DataReceived():
                            self.bodies[e.stream_id] += e.data
                            self.h2.acknowledge_received_data(e.flow_controlled_length, e.stream_id)
                        case h2.events.StreamEnded():
                            tasks[e.stream_id] = asyncio.ensure_future(self.answer(e.stream_id))
                        case h2.events.StreamReset():
                            if e.stream_id in tasks:
                                tasks[e.stream_id].cancel()
                        case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                            self.room.set()
                self.flush()
        except ConnectionError:
            pass
        finally:
            for t in tasks.values():
                t.cancel()
            self.transport.close()

    async def put(self, stream, data, end=False):
        while self.h2.local_flow_control_window(stream) < len(data):
            self.room.clear()
            await self.room.wait()
        self.h2.send_data(stream, data, end_stream=end)
        self.flush()

    async def answer(self, stream):
        grpc = self.headers.pop(stream).get("content-type", "").startswith("application/grpc")
        body = self.bodies.pop(stream)
        q = json.loads(body[5:] if grpc else body)
        kind = "application/grpc" if grpc else "text/event-stream"
        self.h2.send_headers(stream, [(":status", "200"), ("content-type", kind)])
        self.flush()

        def event(data):
            return b"data: " + json.dumps(data).encode() + b"\n\n"

        def token():
            """Tells when it is about to be written."""
            if grpc:
                text = b'secret "at":%d,' % time.monotonic_ns()
                return struct.pack(">BI", 0, len(text)) + text
            choices = b'[{"delta":{"content":"secret"}}]'
            return b'data: {"id":"chatcmpl-1","at":%d,"choices":%s}\n\n' % (time.monotonic_ns(), choices)

        if not grpc:
            await self.put(stream, event({"id": "chatcmpl-1", "choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        await asyncio.sleep(q["prefill_ms"] / 1e3)
        for i in range(q["max_tokens"]):
            if i:
                await asyncio.sleep(q["gap_ms"] / 1e3)
            await self.put(stream, token())
        if grpc:
            self.h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)
            self.flush()
        else:
            usage = {"prompt_tokens": 5, "completion_tokens": q["max_tokens"]}
            await self.put(stream, event({"choices": [], "usage": usage}), True)


async def main():
    if sys.argv[3] == "memory":
        server = await asyncio.start_server(
            lambda r, w: Connection(Memory(r, w)).serve(), "127.0.0.1", 0, ssl=context())
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    tls, loop, alive = context(), asyncio.get_running_loop(), set()

    async def serve(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = Socket(tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))
        try:
            await transport.shake()
        except OSError:
            return transport.close()
        await Connection(transport).serve()

    while True:
        sock, _ = await loop.sock_accept(listener)
        task = loop.create_task(serve(sock))
        alive.add(task)
        task.add_done_callback(alive.discard)


asyncio.run(main())
