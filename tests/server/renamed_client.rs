//! An administrator has disabled `CLIENT`, with which the module closes connections.

use rlock_testkit::Server;

#[test]
fn a_session_is_refused_where_nothing_can_close_it() {
    let server = Server::of("rename-command CLIENT \"\"\n");
    let (mut client, mut ann) = (server.client(), server.client());
    let line = "RLOCK.ACQUIRE door ann SESSION";
    let error = ann.error(line);
    assert!(error.starts_with("ERR SESSION needs the server's CLIENT command"), "{error}");
    let replies = ann.all(&["MULTI", line, "EXEC"]);
    assert!(format!("{:?}", replies[2]).contains("CLIENT command"), "{replies:?}");
    assert_eq!(client.number("EXISTS door"), 0);
}
