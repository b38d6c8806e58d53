"""Pages that try to write, and to reach what they may not, by every means that a browser gives them."""

from tests.support.egress_server import Server, make_ok_response, make_redirect

# Each is tried by itself; the title says when all of them were.
_ATTEMPTS = (
    "fetch('/sink/fetch', {method: 'POST', body: 'x'})",
    "fetch('/sink/simple', {method: 'POST', mode: 'no-cors', keepalive: true, body: 'x'})",
    "fetch('/sink/delete', {method: 'DELETE'})",
    "fetch('/page/override', {headers: {'X-HTTP-Method-Override': 'DELETE'}})",
    "navigator.sendBeacon('/sink/beacon', 'x')",
    "{ const x = new XMLHttpRequest(); x.open('PUT', '/sink/xhr'); x.send('x') }",
    "new WebSocket(location.origin.replace('http', 'ws') + '/sink/websocket')",
    "new WebSocket('ws://127.0.0.1:{other}/')",
    "new EventSource('http://127.0.0.1:{other}/')",
    "fetch('http://127.0.0.1:{other}/', {mode: 'no-cors'})",
    "fetch('http://169.254.169.254/latest/meta-data/', {mode: 'no-cors'})",
    "fetch('file:///etc/passwd')",
    "open('http://127.0.0.1:{other}/'); open('/page/window')",
    "add('iframe', {src: 'http://127.0.0.1:{other}/'}); add('iframe', {src: 'http://169.254.169.254/'})",
    "add('img', {src: 'http://[::1]:{other}/'}); add('link', {rel: 'prefetch', href: 'http://127.0.0.1:{other}/'})",
    "add('link', {rel: 'preconnect', href: 'http://127.0.0.1:{other}'})",
    "add('link', {rel: 'dns-prefetch', href: '//leak.example'})",
    "add('a', {href: '#here', ping: '/sink/ping'}).click()",
    "add('a', {href: '/page/file', download: 'file'}).click()",
    "navigator.serviceWorker.register('/worker.js')",
    "new Worker('/worker.js'); new SharedWorker('/worker.js')",
    "{ const p = new RTCPeerConnection({iceServers: [{urls: 'stun:127.0.0.1:{udp}'}]}); p.createDataChannel('x');"
    " p.createOffer().then((offer) => p.setLocalDescription(offer)) }",
    "{ const f = add('form', {method: 'post', action: '/sink/form', target: 'inner'}); add('iframe', {name: 'inner'});"
    " f.submit() }",
    "addEventListener('pagehide', () => navigator.sendBeacon('/sink/bye', 'x'))",
    "setTimeout(() => { document.title = 'tried' }, 300)",
)
_WORKER = b"""
fetch('/sink/worker', {method: 'POST', body: 'x'}).catch(() => 0);
fetch('http://127.0.0.1:{other}/').catch(() => 0);
"""
_HELPER = (
    "const add = (name, values) => document.body.appendChild(Object.assign(document.createElement(name), values));"
)
_ORDER = (
    b"<title>Order</title><h1>Order</h1><form method=post action=/sink/order>"
    b"<label>Item <input name=item></label><label>Gift <input type=checkbox name=gift></label>"
    b"<label>Size <select name=size><option>small<option>large</select></label>"
    b"<label>Password <input type=password name=password></label>"
    b"<button>Send</button></form><a href=/page/next target=_blank>Next</a>"
)


class HostilePages:
    """The answers of a server with such pages, an order form, and what sinks were sent."""

    def __init__(self, other: Server, udp_port: int = 9) -> None:
        self._other = other
        self._udp_port = udp_port

    def __call__(self, path: str, host: str) -> bytes:
        html = b"Content-Type: text/html; charset=utf-8"
        match path:
            case "/hostile":
                parts = "".join(f"try {{ {each} }} catch (error) {{}}\n" for each in _ATTEMPTS)
                return make_ok_response(self._fill(f"<body><script>{_HELPER}{parts}</script>".encode()), html)
            case "/submits":
                return make_ok_response(
                    b"<form method=post action=/sink/auto></form><script>document.forms[0].submit()</script>", html
                )
            case "/worker.js":
                return make_ok_response(self._fill(_WORKER), b"Content-Type: text/javascript")
            case "/metadata":
                return make_redirect("http://169.254.169.254/latest/meta-data/")
            case "/elsewhere":
                return make_redirect(f"http://127.0.0.1:{self._other.port}/")
            case "/order":
                return make_ok_response(_ORDER, html)
            case "/menu":
                return make_ok_response(b"<button onclick=\"this.textContent='Opened'\">Open</button>", html)
            case _:
                return make_ok_response(f"<title>Page</title><p>You are at {path}.".encode(), html)

    def _fill(self, text: bytes) -> bytes:
        return text.replace(b"{other}", b"%d" % self._other.port).replace(b"{udp}", b"%d" % self._udp_port)


def list_writes(server: Server) -> list[str]:
    """List the requests that were not only reading."""
    return [
        head.split("\r\n")[0]
        for head in server.heads
        if not head.startswith(("GET ", "HEAD ")) or "\nupgrade:" in head.lower() or "\nx-http-method" in head.lower()
    ]
