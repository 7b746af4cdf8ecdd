//! `rlock serve`: the servers' locks as a live page and as metrics, over HTTP. One thread looks at
//! the servers ([`watch`]), however many browsers there are; all other threads show what it saw.
//! [`guard`] decides who may ask.

pub mod act;
pub mod find;
pub mod guard;
pub mod history;
pub mod look;
pub mod metrics;
pub mod page;
pub mod watch;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};

use crate::args::Serve;
use crate::complain;
use crate::servers::Trouble;
use crate::snapshot::Name;
use find::{Place, Search};
use guard::Guard;
use look::Followed;
use watch::{Busy, Watch};

const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9121);

/// Sent with every answer. The page runs and loads only what this program itself serves, and no
/// other page may frame it.
const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// What all requests share.
#[derive(Clone)]
struct Shared {
    watch: Watch,
    guard: Arc<Guard>,
    elections: Arc<[String]>,
    /// Whoever searches for locks.
    searching: Arc<tokio::sync::Mutex<()>>,
    /// Whether all databases are shown.
    is_everywhere: bool,
    /// Whether the servers are named by address: then two servers may have different locks with the
    /// same key.
    is_fixed: bool,
}

/// Serves until a signal ends the program.
///
/// # Errors
/// If it cannot listen, or the words of the command line are wrong. A server that is away is shown.
pub fn serve(job: &Serve) -> Result<(), Trouble> {
    if job.at.is_fixed() {
        job.at.watched()?;
    } else {
        job.at.nodes()?;
    }
    let guard = Guard::new(job)?;
    let listen = job.listen.unwrap_or(LISTEN);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let listener =
            TcpListener::bind(listen).await.map_err(|error| format!("{listen}: {error}"))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        if !address.ip().is_loopback() {
            complain(format_args!("anybody who can reach {address} sees all locks and owners"));
        }
        let watch = Watch::start(job.at.clone()).map_err(|error| error.to_string())?;
        let (elections, is_fixed) = (job.elections[..].into(), job.at.is_fixed());
        let (guard, is_everywhere) = (guard.into(), job.at.is_everywhere);
        let searching = Arc::default();
        let shared = Shared { watch, guard, elections, searching, is_everywhere, is_fixed };
        println!("http://{address}/");
        tokio::select! {
            ended = axum::serve(listener, router(shared)) => ended.map_err(|error| error.to_string()),
            ended = told_to_end() => ended,
        }
    })
}

async fn told_to_end() -> Result<(), Trouble> {
    let on = |kind| signal(kind).map_err(|error| error.to_string());
    let (mut term, mut int) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    tokio::select! { _ = term.recv() => Ok(()), _ = int.recv() => Ok(()) }
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", include_str!("../../page/page.html"))))
        .route(
            "/page.js",
            get(|| file("text/javascript; charset=utf-8", include_str!("../../page/page.js"))),
        )
        .route(
            "/plots.js",
            get(|| file("text/javascript; charset=utf-8", include_str!("../../page/plots.js"))),
        )
        .route(
            "/page.css",
            get(|| file("text/css; charset=utf-8", include_str!("../../page/page.css"))),
        )
        .route("/events", get(events))
        .route("/locks", get(locks))
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(healthz))
        .route("/actions", post(actions))
        .layer(DefaultBodyLimit::max(16 * 1024))
        .layer(from_fn_with_state(shared.clone(), guarded))
        .with_state(shared)
}

async fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text)
}

async fn guarded(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let mut response = match shared.guard.refusal(request.uri().path(), request.headers()) {
        Some((status, why)) => (status, why + "\n").into_response(),
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        let name = HeaderName::from_static(name);
        response.headers_mut().insert(name, header::HeaderValue::from_static(value));
    }
    response
}

/// What a browser wants to follow.
#[derive(Deserialize)]
struct Wanted {
    /// The bytes of a key, in hexadecimal.
    key: Option<String>,
    /// The server's name on the page.
    server: Option<String>,
    /// The database.
    db: Option<i64>,
}

impl Shared {
    /// Why the requested database is not shown.
    fn refused_database(&self, db: Option<i64>) -> Option<String> {
        let why = "other databases are shown only with --all-databases\n";
        (db.is_some() && !self.is_everywhere).then(|| why.to_owned())
    }
}

async fn events(
    State(shared): State<Shared>,
    Query(wanted): Query<Wanted>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, (StatusCode, String)> {
    let key = wanted.key.as_deref().map(|key| act::bytes_of(key).map(Name)).transpose();
    let key = key.map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    if let Some(why) = shared.refused_database(wanted.db) {
        return Err((StatusCode::BAD_REQUEST, why));
    }
    let (server, db) = (wanted.server, wanted.db);
    let viewer = shared
        .watch
        .view(key.map(|key| Followed { server, db, key }))
        .map_err(|Busy(why)| (StatusCode::SERVICE_UNAVAILABLE, why.into()))?;
    let past = Event::default().event("history").data(shared.watch.history());
    let can_act = shared.guard.allows_actions();
    let looks = WatchStream::new(shared.watch.seen()).map(move |seen| {
        let lock = viewer.lock.as_ref().and_then(|lock| seen.locks.get(lock));
        Event::default().event("look").data(page::event(&seen, lock, can_act, shared.is_fixed))
    });
    let all = tokio_stream::once(past).chain(looks).map(Ok);
    Ok(Sse::new(all).keep_alive(KeepAlive::default()))
}

/// What a browser searches for.
#[derive(Deserialize)]
struct Sought {
    /// A part of a name.
    find: String,
    /// The cursor at which the search continues.
    at: Option<String>,
}

async fn locks(
    State(shared): State<Shared>,
    Query(sought): Query<Sought>,
) -> Result<Json<serde_json::Value>, (StatusCode, String)> {
    let place = sought.at.as_deref().map_or(Ok(Place::default()), str::parse);
    let place = place.map_err(|why| (StatusCode::BAD_REQUEST, why + "\n"))?;
    let search = Search { text: sought.find, is_everywhere: shared.is_everywhere };
    let servers = shared.watch.primaries();
    // One search at a time, so that several searches take no more of the servers' time than one.
    let turn = shared.searching.clone().lock_owned().await;
    let found = tokio::task::spawn_blocking(move || {
        let _turn = turn; // also if the browser has gone
        search.go_on(&servers, place)
    });
    match found.await {
        Ok(Ok(found)) => Ok(Json(found)),
        Ok(Err(why)) => Err((StatusCode::CONFLICT, why + "\n")),
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))),
    }
}

async fn metrics_text(State(shared): State<Shared>) -> Result<impl IntoResponse, StatusCode> {
    let seen = shared.watch.fresh().await;
    let text =
        metrics::text(&seen, &shared.elections).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
}

/// Reports whether this program works. The state of the servers is in the text and in `rlock_up`:
/// to restart this program because a server is down would help nobody.
async fn healthz(State(shared): State<Shared>) -> (StatusCode, String) {
    match shared.watch.age() {
        Some(age) if age > watch::STUCK => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("no round of requests has ended for {} s\n", age.as_secs()),
        ),
        _ => (StatusCode::OK, format!("ok\n{}", shared.watch.latest().in_words())),
    }
}

async fn actions(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Json(action): Json<act::Action>,
) -> (StatusCode, String) {
    if let Some((status, why)) = shared.guard.refused_action(&headers) {
        return (status, why + "\n");
    }
    if let Some(why) = shared.refused_database(action.db()) {
        return (StatusCode::BAD_REQUEST, why);
    }
    let servers = shared.watch.servers();
    let said = action.to_string();
    let done =
        tokio::task::spawn_blocking(move || act::carry_out(&action, &servers, shared.is_fixed))
            .await;
    match done {
        Ok(Ok(text)) => {
            complain(format_args!("{said}: {text}"));
            (StatusCode::OK, text + "\n")
        }
        Ok(Err(why)) => (StatusCode::CONFLICT, why + "\n"),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}
