//! Which requests are answered: not those of other sites' pages, nor those for a host name that an
//! attacker pointed at this address.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode, Uri, header};
use subtle::ConstantTimeEq;

use crate::args::Serve;
use crate::servers::Trouble;

/// The environment variable with the token of `--allow-actions`: unlike an argument, it does not
/// appear in process listings.
const TOKEN: &str = "RLOCK_SERVE_TOKEN";
const TOKEN_LEN_MIN: usize = 16;

/// The rules.
#[derive(Debug)]
pub struct Guard {
    hosts: Vec<String>,
    token: Option<String>,
}

/// The status and the text that a refused request gets.
pub type Refusal = (StatusCode, String);

impl Guard {
    /// The rules that the command line asks for.
    ///
    /// # Errors
    /// If actions are allowed and no token of at least 16 bytes is given.
    pub fn new(job: &Serve) -> Result<Guard, Trouble> {
        let token = match (job.allows_actions, std::env::var(TOKEN)) {
            (false, _) => None,
            (true, Ok(token)) if token.len() >= TOKEN_LEN_MIN => Some(token),
            (true, _) => {
                return Err(format!(
                    "--allow-actions needs a token of at least {TOKEN_LEN_MIN} bytes in ${TOKEN}"
                ));
            }
        };
        Ok(Guard { hosts: job.hosts.clone(), token })
    }

    /// Whether requests may change something.
    #[must_use]
    pub fn allows_actions(&self) -> bool {
        self.token.is_some()
    }

    /// Why a request for `path` is not answered.
    ///
    /// `Host` must be an address, `localhost` or a name that was allowed: this excludes a name that
    /// an attacker pointed at this address (DNS rebinding). Requests from another site's page are
    /// refused, except for a link to `/`.
    #[must_use]
    pub fn refusal(&self, path: &str, headers: &HeaderMap) -> Option<Refusal> {
        let Some(host) = text(headers, header::HOST.as_str()) else {
            return Some((
                StatusCode::BAD_REQUEST,
                "a request needs exactly one Host header".into(),
            ));
        };
        if !self.is_own(name_of(host)) {
            let name = name_of(host).escape_debug();
            let why =
                format!("this page is not served for '{name}'; allow the name with --allow-host");
            return Some((StatusCode::MISDIRECTED_REQUEST, why));
        }
        let is_link = path == "/"
            && text(headers, "sec-fetch-mode") == Some("navigate")
            && text(headers, "sec-fetch-dest") == Some("document");
        let is_of_here = match text(headers, "sec-fetch-site") {
            Some("same-origin" | "none") | None => true,
            Some(_) => is_link,
        };
        let is_from_here = match headers.get(header::ORIGIN) {
            None => true,
            Some(origin) => origin
                .to_str()
                .ok()
                .and_then(|origin| origin.parse::<Uri>().ok())
                .and_then(|origin| origin.authority().map(|authority| authority.as_str() == host))
                .unwrap_or(false),
        };
        (!is_of_here || !is_from_here)
            .then(|| (StatusCode::FORBIDDEN, "requests from other sites are refused".into()))
    }

    /// Why an action is not carried out.
    #[must_use]
    pub fn refused_action(&self, headers: &HeaderMap) -> Option<Refusal> {
        let Some(token) = &self.token else {
            return Some((
                StatusCode::FORBIDDEN,
                "actions need rlock serve --allow-actions".into(),
            ));
        };
        let given = text(headers, header::AUTHORIZATION.as_str());
        let given = given.and_then(|text| text.strip_prefix("Bearer ")).unwrap_or_default();
        let is_known: bool = given.as_bytes().ct_eq(token.as_bytes()).into();
        (!is_known).then(|| (StatusCode::UNAUTHORIZED, format!("the token must match ${TOKEN}")))
    }

    fn is_own(&self, name: &str) -> bool {
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let is_allowed = self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name));
        is_address || name.eq_ignore_ascii_case("localhost") || is_allowed
    }
}

/// The only value of a header; `None` if it is missing, occurs several times, or is not text.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// `Host` without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn answer(path: &str, lines: &[(&'static str, &'static str)]) -> u16 {
        let guard = Guard { hosts: vec!["locks.example".into()], token: Some("s".repeat(16)) };
        let mut headers = HeaderMap::new();
        for &(name, value) in lines {
            headers.append(name, value.parse().unwrap());
        }
        guard.refusal(path, &headers).map_or(200, |(status, _)| status.as_u16())
    }

    #[test]
    fn a_request_for_an_unknown_host_is_refused() {
        for host in
            ["127.0.0.1:9121", "localhost:9121", "[::1]:9121", "10.0.0.7", "LOCKS.example:1"]
        {
            assert_eq!(answer("/", &[("host", host)]), 200, "{host}");
        }
        for host in
            ["evil.example:9121", "localhost.evil.example", "127.0.0.1.evil.example:9121", ""]
        {
            assert_eq!(answer("/metrics", &[("host", host)]), 421, "{host}");
        }
        assert_eq!(answer("/", &[]), 400);
        assert_eq!(answer("/", &[("host", "localhost"), ("host", "evil.example")]), 400);
    }

    #[test]
    fn requests_from_another_site_are_refused_but_its_links_work() {
        let here = ("host", "localhost:9121");
        let from = |site, mode, dest| {
            [here, ("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)]
        };
        assert_eq!(answer("/", &from("cross-site", "navigate", "document")), 200);
        assert_eq!(answer("/", &from("cross-site", "navigate", "iframe")), 403);
        assert_eq!(answer("/events", &from("cross-site", "navigate", "document")), 403);
        assert_eq!(answer("/events", &from("same-site", "cors", "empty")), 403);
        assert_eq!(answer("/events", &from("same-origin", "cors", "empty")), 200);
        assert_eq!(answer("/", &from("none", "navigate", "document")), 200);
        for (origin, code) in [
            ("http://localhost:9121", 200),
            ("https://localhost:9121", 200),
            ("http://localhost:1", 403),
            ("http://evil.example", 403),
            ("null", 403),
            ("", 403),
        ] {
            assert_eq!(answer("/actions", &[here, ("origin", origin)]), code, "{origin}");
        }
    }

    #[test]
    fn an_action_needs_the_token_and_the_permission() {
        let asked = |token: Option<&str>, given: Option<&str>| {
            let guard = Guard { hosts: Vec::new(), token: token.map(str::to_owned) };
            let mut headers = HeaderMap::new();
            if let Some(given) = given {
                headers.insert("authorization", given.parse().unwrap());
            }
            guard.refused_action(&headers).map_or(200, |(status, _)| status.as_u16())
        };
        assert_eq!(asked(None, Some("Bearer ")), 403);
        assert_eq!(asked(Some("right"), None), 401);
        assert_eq!(asked(Some("right"), Some("Bearer wrong")), 401);
        assert_eq!(asked(Some("right"), Some("right")), 401);
        assert_eq!(asked(Some("right"), Some("Bearer right")), 200);
    }
}
