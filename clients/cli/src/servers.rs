//! The addresses of the servers, and the credentials for them.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use redis::{
    Client, ClientTlsConfig, Connection, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, RedisError, RedisResult, TlsCertificates, Value,
};

/// A server that hangs must not hang the view.
const PATIENCE: Duration = Duration::from_secs(3);

/// The servers, as the command line names them.
#[derive(Debug, Default, Clone)]
pub struct Where {
    /// The value of each `--url`.
    pub urls: Vec<String>,
    /// `--cluster`
    pub is_cluster: bool,
    /// `--sentinel`
    pub sentinel: Option<String>,
    /// `--cacert`
    pub authority: Option<String>,
    /// `--cert`
    pub certificate: Option<String>,
    /// `--key`
    pub key: Option<String>,
    /// `--all-databases`
    pub is_everywhere: bool,
}

/// One primary.
#[derive(Clone)]
pub struct Server {
    /// Host and port, without the password.
    pub name: String,
    client: Client,
}

/// An error, as a line to print.
pub type Trouble = String;

impl Where {
    /// The nodes that were named, with user, password and TLS.
    ///
    /// # Errors
    /// If a URL is invalid, or a file cannot be read.
    pub fn nodes(&self) -> Result<Vec<Client>, Trouble> {
        let named = match (self.urls.as_slice(), std::env::var("RLOCK_URL")) {
            ([], Ok(url)) => url.split_whitespace().map(str::to_owned).collect(),
            ([], Err(_)) => vec!["redis://127.0.0.1:6379".to_owned()],
            (urls, _) => urls.to_vec(),
        };
        let certificates = self.certificates()?;
        named.iter().map(|url| client(url, certificates.as_ref())).collect()
    }

    fn certificates(&self) -> Result<Option<TlsCertificates>, Trouble> {
        let read = |path: &Option<String>| match path {
            None => Ok(None),
            Some(path) => fs::read(path).map(Some).map_err(|error| format!("{path}: {error}")),
        };
        let (root_cert, client_cert, client_key) =
            (read(&self.authority)?, read(&self.certificate)?, read(&self.key)?);
        let client_tls = match (client_cert, client_key) {
            (Some(client_cert), Some(client_key)) => {
                Some(ClientTlsConfig { client_cert, client_key })
            }
            (None, None) => None,
            _ => return Err("--cert and --key must be given together".into()),
        };
        let is_said = root_cert.is_some() || client_tls.is_some();
        Ok(is_said.then_some(TlsCertificates { client_tls, root_cert }))
    }

    /// All current primaries.
    ///
    /// # Errors
    /// If no server names them.
    pub fn primaries(&self) -> Result<Vec<Server>, Trouble> {
        let nodes = self.nodes()?;
        match &self.sentinel {
            Some(master) => asked(&nodes, |node| of_sentinel(node, master)),
            None if self.is_cluster => asked(&nodes, of_cluster),
            None => only(nodes).map(|node| vec![Server::new(node)]),
        }
    }

    /// The servers to watch: all primaries, or all servers that are named by address.
    ///
    /// # Errors
    /// As [`Where::primaries`].
    pub fn watched(&self) -> Result<Vec<Server>, Trouble> {
        if self.is_fixed() {
            let servers: Vec<Server> = self.nodes()?.into_iter().map(Server::new).collect();
            let mut names = BTreeSet::new();
            let twice = servers.iter().find(|server| !names.insert(&server.name));
            // Its counters are those of all its databases.
            let wrong = |server: &Server| {
                Err(format!(
                    "{} is named twice: name one database of it, or all with --all-databases",
                    server.name
                ))
            };
            twice.map_or(Ok(()), wrong)?;
            return Ok(servers);
        }
        self.primaries()
    }

    /// Whether the servers are named by address, instead of being discovered.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.sentinel.is_none() && !self.is_cluster
    }

    /// For `rlock run`.
    ///
    /// # Errors
    /// As [`Where::nodes`].
    pub fn locker(&self) -> Result<rlock_client::Locker, Trouble> {
        let nodes = self.nodes()?;
        let infos = nodes.iter().map(|node| node.get_connection_info().clone());
        let first = nodes.first().ok_or(NOBODY)?.clone();
        match &self.sentinel {
            Some(master) => {
                let sentinels = nodes.iter().map(without_database);
                let node = first.get_connection_info().clone();
                rlock_client::Locker::sentinel(sentinels, master, node)
            }
            None if self.is_cluster => rlock_client::Locker::cluster(infos),
            None => Ok(rlock_client::Locker::new(only(nodes)?)),
        }
        .map_err(|error| error.to_string())
    }
}

const NOBODY: &str = "no server is named";

/// The one server that is named.
fn only(mut nodes: Vec<Client>) -> Result<Client, Trouble> {
    match (nodes.pop(), nodes.is_empty()) {
        (Some(node), true) => Ok(node),
        (None, _) => Err(NOBODY.into()),
        _ => Err("several servers are named: add --cluster or --sentinel NAME".into()),
    }
}

fn client(url: &str, certificates: Option<&TlsCertificates>) -> Result<Client, Trouble> {
    // Never the URL itself: there is a password in it.
    let wrong = |error: RedisError| {
        format!("a URL is redis://[[user]:password@]host[:port][/db] or rediss://…: {error}")
    };
    let info = url.into_connection_info().map_err(wrong)?;
    // Not every user may name its library (CLIENT SETINFO), and each refusal adds an entry to the
    // server's ACL log.
    let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
    if let (None, Ok(password)) = (settings.password(), std::env::var("REDISCLI_AUTH")) {
        settings = settings.set_password(password);
    }
    let info = info.set_redis_settings(settings);
    match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        None => Client::open(info),
    }
    .map_err(|error| error.to_string())
}

/// The first answer of one of `nodes`.
fn asked(
    nodes: &[Client],
    ask: impl Fn(&Client) -> Result<Vec<Server>, Trouble>,
) -> Result<Vec<Server>, Trouble> {
    let mut trouble = NOBODY.to_owned();
    for node in nodes {
        match ask(node) {
            Ok(servers) => return Ok(servers),
            Err(error) => trouble = format!("{}: {error}", node.get_connection_info().addr()),
        }
    }
    Err(trouble)
}

/// The connection to a Sentinel. It has no databases: the URL's database is meant for the primary.
fn without_database(node: &Client) -> ConnectionInfo {
    let info = node.get_connection_info().clone();
    let settings = info.redis_settings().clone().set_db(0);
    info.set_redis_settings(settings)
}

fn of_sentinel(node: &Client, master: &str) -> Result<Vec<Server>, Trouble> {
    let sentinel = Client::open(without_database(node)).map_err(|error| error.to_string())?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let found: Option<(String, u16)> =
        ask.query(&mut connect(&sentinel)?).map_err(|error| error.to_string())?;
    let (host, port) = found.ok_or_else(|| format!("Sentinel knows no '{master}'"))?;
    Ok(vec![beside(node, &host, port)?])
}

fn of_cluster(node: &Client) -> Result<Vec<Server>, Trouble> {
    let ranges: Vec<Vec<Value>> = redis::cmd("CLUSTER")
        .arg("SLOTS")
        .query(&mut connect(node)?)
        .map_err(|error| error.to_string())?;
    let mut servers: Vec<Server> = Vec::new();
    for range in ranges {
        let Some(Value::Array(primary)) = range.get(2) else { continue };
        let [host, port, ..] = primary.as_slice() else { continue };
        let host: String = redis::from_redis_value_ref(host).unwrap_or_default();
        let port: u16 = redis::from_redis_value_ref(port).unwrap_or_default();
        let server = beside(node, &host, port)?;
        if !servers.iter().any(|known| known.name == server.name) {
            servers.push(server);
        }
    }
    if servers.is_empty() { Err("no slot has a server".into()) } else { Ok(servers) }
}

/// The server at that address, with the credentials of `node`.
fn beside(node: &Client, host: &str, port: u16) -> Result<Server, Trouble> {
    let info: ConnectionInfo = node.get_connection_info().clone();
    let own = |own: &String| if host.is_empty() { own.clone() } else { host.to_owned() };
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { host, insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host: own(&host), port, insecure, tls_params }
        }
        ConnectionAddr::Tcp(host, _) => ConnectionAddr::Tcp(own(&host), port),
        _ => ConnectionAddr::Tcp(host.to_owned(), port),
    };
    Client::open(info.set_addr(addr)).map(Server::new).map_err(|error| error.to_string())
}

fn try_connect(client: &Client) -> RedisResult<Connection> {
    let connection = client.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}

fn connect(client: &Client) -> Result<Connection, Trouble> {
    try_connect(client).map_err(|error| explain(&error))
}

impl Server {
    fn new(client: Client) -> Server {
        Server { name: client.get_connection_info().addr().to_string(), client }
    }

    /// The database whose locks are shown.
    #[must_use]
    pub fn db(&self) -> i64 {
        self.client.get_connection_info().redis_settings().db()
    }

    /// A connection that gives up after some seconds.
    ///
    /// # Errors
    /// Why there is none, with the server's name.
    pub fn connect(&self) -> Result<Connection, Trouble> {
        connect(&self.client).map_err(|error| format!("{}: {error}", self.name))
    }

    /// As [`Server::connect`].
    ///
    /// # Errors
    /// The client's own.
    pub fn try_connect(&self) -> RedisResult<Connection> {
        try_connect(&self.client)
    }
}

/// The database of the connections to them.
#[must_use]
pub fn home_of(servers: &[Server]) -> i64 {
    servers.first().map_or(0, Server::db)
}

/// Asks one server after another until one answers. In a Cluster, any of them may have the key, and
/// servers that are down are skipped.
///
/// # Errors
/// The refusal, or which server cannot be reached; `nobody` if there is none.
pub fn first_of<'s, T>(
    servers: impl IntoIterator<Item = &'s Server>,
    nobody: &str,
    ask: impl Fn(&mut Connection) -> RedisResult<T>,
) -> Result<(&'s Server, Connection, T), Trouble> {
    let (mut trouble, mut unreached) = (nobody.to_owned(), None);
    for server in servers {
        let mut connection = match server.connect() {
            Ok(connection) => connection,
            Err(error) => {
                unreached = Some(error);
                continue;
            }
        };
        match ask(&mut connection) {
            Ok(answer) => return Ok((server, connection, answer)),
            Err(error) if error.code() == Some("MOVED") => trouble = explain(&error),
            Err(error) if error.is_io_error() => {
                unreached = Some(format!("{}: {}", server.name, explain(&error)));
            }
            Err(error) => return Err(explain(&error)),
        }
    }
    Err(unreached.unwrap_or(trouble))
}

/// The error if no server serves a key.
pub const UNSERVED: &str = "no server serves this key";

/// Asks the server that serves a key, as [`first_of`].
///
/// # Errors
/// As [`first_of`].
pub fn ask_server_of_key<'s, T>(
    servers: impl IntoIterator<Item = &'s Server>,
    ask: impl Fn(&mut Connection) -> RedisResult<T>,
) -> Result<(&'s Server, Connection, T), Trouble> {
    first_of(servers, UNSERVED, ask)
}

/// Why a server cannot be asked, as a machine-readable word.
#[must_use]
pub fn reason(error: &RedisError) -> &'static str {
    let text = error.to_string();
    match code_of(error).as_deref() {
        Some("NOAUTH" | "WRONGPASS") => "password",
        Some("NOPERM") => "permission",
        Some("LOADING" | "BUSYLOADING") => "loading",
        _ if error.kind() == ErrorKind::AuthenticationFailed => "password",
        _ if text.contains("unknown command") => "no_module",
        _ if text.to_ascii_lowercase().contains("certificate") => "tls",
        _ if error.is_timeout() => "timeout",
        _ if error.is_io_error() => "unreachable",
        _ => "error",
    }
}

/// The first word of a server's refusal; of several pipelined commands, that of the first refused
/// one.
#[must_use]
pub fn code_of(error: &RedisError) -> Option<String> {
    let of_several = || {
        let errors = error.clone().into_server_errors()?;
        errors.first().map(|(_, error)| error.code().to_owned())
    };
    error.code().map(str::to_owned).or_else(of_several)
}

/// All that [`reason`] says.
pub const REASONS: [&str; 8] =
    ["unreachable", "timeout", "tls", "password", "permission", "loading", "no_module", "error"];

/// A server's refusal in words that help the reader.
#[must_use]
pub fn explain(error: &RedisError) -> Trouble {
    if error.to_string().contains("unknown command") {
        return "this server has no RLOCK module".into();
    }
    if error.kind() == ErrorKind::Parse {
        return "what answers there does not speak the protocol of Redis".into();
    }
    // The system's own message speaks of a resource that is unavailable.
    if error.is_timeout() {
        return format!("no answer within {} s", PATIENCE.as_secs());
    }
    // Of several pipelined commands, the first refused one has the reason.
    let refusals = error.clone().into_server_errors();
    match refusals.as_ref().and_then(|all| all.first()) {
        Some((_, first)) => RedisError::from(first.clone()).to_string(),
        None => error.to_string(),
    }
}
