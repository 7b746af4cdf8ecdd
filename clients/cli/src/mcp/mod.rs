//! `rlock mcp`: claims of files for agents, over the Model Context Protocol on standard input and output.

mod claims;
pub mod paths;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::stdio;
use rmcp::{ErrorData, RoleServer, ServiceExt};
use serde_json::{Value, json};

use self::claims::{Claims, with};
use self::paths::{Root, above};
use crate::args::Mcp;
use crate::servers::{Trouble, Where, ask_server_of_key};
use crate::signals::Ending;
use crate::snapshot::{self, Lock, Name};
use crate::view::short;

/// How long a call waits unless it names a time itself: MCP clients have short timeouts.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest wait that a call may ask for.
const LONGEST: Duration = Duration::from_secs(600);

/// The environment variable with the agent's name, for the hook that checks its claims.
const AGENT: &str = "RLOCK_AGENT";

const INSTRUCTIONS: &str = "\
Several agents work on these files. Before you write, claim all the paths that you will write, in one call of claim_paths; \
a folder stands for all that is in it. Write only while the state is 'held'. If it is 'waiting', you are in line: call wait. \
Release the claim as soon as you are done. If a result names something under 'lost', stop writing to those paths.";

/// Serves one agent, or checks one path, and returns the exit code.
///
/// # Errors
/// If the words of the command line are wrong, or the agent does not speak the protocol.
pub fn mcp(job: &Mcp) -> Result<u8, Trouble> {
    let root = Root::new(Path::new(job.root.as_deref().unwrap_or(".")))?;
    let name = || root.name().replace(['{', '}'], "_");
    // In a Cluster, all keys of one claim must be in one slot.
    let prefix = job.prefix.clone().unwrap_or_else(|| format!("{{paths:{}}}", name()));
    let agent = job.agent.clone().or_else(|| std::env::var(AGENT).ok());
    let agent = agent.filter(|agent| !agent.is_empty());
    if let Some(path) = &job.check {
        let agent = agent.ok_or(format!("--check needs --agent NAME, or ${AGENT}"))?;
        return check(&job.at, &root, &prefix, &agent, path);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let served = runtime.block_on(async {
        let claims = Arc::new(Claims::new(&job.at, root, prefix, agent)?);
        let served = tokio::select! {
            served = serve(Agent(claims.clone())) => served,
            ended = ended() => ended,
        };
        let _ = claims.release(None).await; // their sessions end with this process anyway
        served
    });
    runtime.shutdown_background(); // a thread waits for the next line of the input
    served.map(|()| 0)
}

async fn serve(agent: Agent) -> Result<(), Trouble> {
    let service = agent.serve(stdio()).await.map_err(|error| error.to_string())?;
    service.waiting().await.map(drop).map_err(|error| error.to_string())
}

async fn ended() -> Result<(), Trouble> {
    let mut signals = Ending::new().map_err(|error| error.to_string())?;
    let _ = signals.next().await;
    Ok(())
}

/// Checks whether the agent has claimed the path. The exit code is 0 if it has, and 1 if not.
fn check(at: &Where, root: &Root, prefix: &str, agent: &str, path: &str) -> Result<u8, Trouble> {
    let path = root.relative(path)?;
    let begin = format!("{agent}/");
    let mut others = Vec::new();
    for (place, lock) in holders_of(at, prefix, &path)? {
        for hold in lock.holders.iter().filter(|hold| hold.mode == "write") {
            if hold.owner.0.starts_with(begin.as_bytes()) {
                return Ok(0);
            }
            others.push(format!("{} has claimed {}", hold.owner, shown(&place)));
        }
    }
    let others = if others.is_empty() { "nobody has".to_owned() } else { others.join(", ") };
    crate::complain(format_args!(
        "{agent} has not claimed {} ({others}): call claim_paths before you write",
        shown(&path)
    ));
    Ok(1)
}

fn shown(path: &str) -> &str {
    if path.is_empty() { "." } else { path }
}

/// The locks of a path and of the folders above it: a claim of any of these covers the path.
fn holders_of(at: &Where, prefix: &str, path: &str) -> Result<Vec<(String, Lock)>, Trouble> {
    let servers = at.primaries()?;
    let places = std::iter::once(path).chain(above(path));
    let each = places.map(|place| {
        let key = Name(format!("{prefix}/{place}").into_bytes());
        let look = |server: &mut redis::Connection| snapshot::look(server, &key);
        let (_, _, lock) = ask_server_of_key(&servers, look)?;
        Ok((place.to_owned(), lock))
    });
    each.collect()
}

/// What the agent sees.
#[derive(Clone)]
struct Agent(Arc<Claims>);

impl ServerHandler for Agent {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("rlock", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let words = Value::Object(request.arguments.unwrap_or_default());
        let lost = self.0.lost(words.get("claim").and_then(Value::as_u64));
        let answer = match check_words(&request.name, &words) {
            Err(why) => Err(why),
            Ok(()) => match &*request.name {
                "claim_paths" => self.claim(&words).await,
                "wait" => self.wait(&words).await,
                "release" => self.release(&words).await,
                "who" => self.who(&words).await,
                name => {
                    return Err(ErrorData::invalid_params(format!("no tool '{name}'"), None));
                }
            },
        };
        Ok(match answer {
            Ok(answer) if lost.is_empty() => CallToolResult::structured(answer),
            Ok(answer) => CallToolResult::structured(with(answer, json!({ "lost": lost }))),
            Err(why) => CallToolResult::structured_error(json!({ "error": why, "lost": lost })),
        }
        .into())
    }
}

impl Agent {
    async fn claim(&self, words: &Value) -> Result<Value, Trouble> {
        self.0.claim(&paths_of(words)?, patience(words)?).await
    }

    async fn wait(&self, words: &Value) -> Result<Value, Trouble> {
        let id = claim_of(words)?.ok_or("name the claim")?;
        self.0.wait(id, patience(words)?).await
    }

    async fn release(&self, words: &Value) -> Result<Value, Trouble> {
        self.0.release(claim_of(words)?).await
    }

    async fn who(&self, words: &Value) -> Result<Value, Trouble> {
        let paths = if words.get("paths").is_some() { paths_of(words)? } else { Vec::new() };
        let mut told = Vec::new();
        for path in paths {
            let path = self.0.root.relative(&path)?;
            let (at, prefix, asked) = (self.0.at.clone(), self.0.prefix.clone(), path.clone());
            let found = tokio::task::spawn_blocking(move || holders_of(&at, &prefix, &asked));
            let found = found.await.map_err(|error| error.to_string())??;
            told.push(one(&path, &found));
        }
        Ok(json!({ "mine": self.0.mine(), "paths": told }))
    }
}

/// Who has claimed a path, or a folder above it, or something in it.
fn one(path: &str, found: &[(String, Lock)]) -> Value {
    let mut claims = Vec::new();
    let mut waiting = 0;
    for (place, lock) in found {
        let is_itself = place == path;
        waiting += if is_itself { lock.length } else { 0 };
        for hold in lock.holders.iter().filter(|hold| is_itself || hold.mode == "write") {
            let what = match (hold.mode.as_str(), is_itself) {
                ("write", true) => "this path",
                ("write", false) => "a folder above it",
                _ => "something in it",
            };
            claims.push(json!({
                "owner": hold.owner.to_string(),
                "claims": what,
                "path": shown(place),
                "for": short(hold.held),
            }));
        }
    }
    let state = if claims.is_empty() { "free" } else { "claimed" };
    json!({ "path": shown(path), "state": state, "claims": claims, "waiting": waiting })
}

fn paths_of(words: &Value) -> Result<Vec<String>, Trouble> {
    let wrong = "'paths' must be a list of paths, as text";
    let list = words.get("paths").and_then(Value::as_array).ok_or(wrong)?;
    let each = list.iter().map(|path| path.as_str().map(str::to_owned));
    Ok(each.collect::<Option<Vec<_>>>().ok_or(wrong)?)
}

/// Refuses an argument that the tool does not have: without it, the call may mean more than the
/// agent asked for.
fn check_words(tool: &str, words: &Value) -> Result<(), Trouble> {
    let Some(tool) = tools().into_iter().find(|known| known.name == tool) else { return Ok(()) };
    let names = |object: Option<&JsonObject>| -> Vec<String> {
        object.into_iter().flat_map(JsonObject::keys).cloned().collect()
    };
    let known = names(tool.input_schema.get("properties").and_then(Value::as_object));
    match names(words.as_object()).into_iter().find(|name| !known.contains(name)) {
        Some(other) => {
            Err(format!("{} has no argument '{other}': it has {}", tool.name, known.join(", ")))
        }
        None => Ok(()),
    }
}

fn claim_of(words: &Value) -> Result<Option<u64>, Trouble> {
    match words.get("claim") {
        None | Some(Value::Null) => Ok(None),
        Some(id) => id.as_u64().map(Some).ok_or_else(|| "'claim' must be its number".into()),
    }
}

fn patience(words: &Value) -> Result<Duration, Trouble> {
    let Some(seconds) = words.get("seconds") else { return Ok(PATIENCE) };
    let time = seconds.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| *time <= LONGEST)
        .ok_or_else(|| format!("'seconds' must be a number from 0 to {}", LONGEST.as_secs()))
}

fn tools() -> Vec<Tool> {
    let text = |what: &str| json!({ "type": "string", "description": what });
    let paths = |what: &str| json!({ "type": "array", "items": text(what), "description": what });
    let seconds = json!({
        "type": "number",
        "description": "how long this call may wait, 0 to 600; the default is 20",
    });
    let claim = json!({ "type": "integer", "description": "the number of the claim" });
    let schema = |properties: Value, required: &[&str]| {
        let mut schema = JsonObject::new();
        schema.insert("type".into(), json!("object"));
        schema.insert("properties".into(), properties);
        schema.insert("required".into(), json!(required));
        schema
    };
    vec![
        Tool::new(
            "claim_paths",
            "Claim files or folders before you write them: all of them or none. If another agent has claimed one of them, \
             you wait in line; the result names your place and who is before you. Whoever has a claim does not wait for \
             another: it is refused, with who has it.",
            schema(
                json!({
                    "paths": paths("a path in the repository; a folder stands for all that is in it"),
                    "seconds": seconds,
                }),
                &["paths"],
            ),
        ),
        Tool::new(
            "wait",
            "Wait until a claim that is in line is yours.",
            schema(json!({ "claim": claim, "seconds": seconds }), &["claim"]),
        ),
        Tool::new(
            "release",
            "Release a claim when you are done, or leave the line; without a number, all of yours.",
            schema(json!({ "claim": claim }), &[]),
        ),
        Tool::new(
            "who",
            "See who has claimed paths, and what you have claimed. Changes nothing.",
            schema(json!({ "paths": paths("a path in the repository") }), &[]),
        ),
    ]
}
