//! A web service over an index, embedded or in a cluster:
//!
//! ```console
//! $ cargo run --release -p farleaf --example axum_service [FOLDER-OF-A-CLUSTER]
//! $ curl -X PUT localhost:8080/42 -d 7; curl localhost:8080/42; curl localhost:8080/from/40
//! ```

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use farleaf::{Embedded, EmbeddedOptions, Error, Index};

/// A client may repeat a request that certainly changed nothing; otherwise it must check the
/// outcome.
fn failed(error: Error) -> (StatusCode, String) {
    let status = match &error {
        Error::Indeterminate(_) => StatusCode::GATEWAY_TIMEOUT,
        Error::Unavailable(_) | Error::Contended(_) => StatusCode::SERVICE_UNAVAILABLE,
        Error::OutOfMemory(_) => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}

async fn read(
    State(index): State<Index>,
    Path(key): Path<u64>,
) -> Result<String, (StatusCode, String)> {
    let value = index.get(key).await.map_err(failed)?;
    value.map(|value| format!("{value}\n")).ok_or((StatusCode::NOT_FOUND, "absent\n".to_owned()))
}

async fn write(
    State(index): State<Index>,
    Path(key): Path<u64>,
    body: String,
) -> Result<(), (StatusCode, String)> {
    let invalid = |_| (StatusCode::BAD_REQUEST, "the value must be a whole number\n".to_owned());
    let value = body.trim().parse::<u64>().map_err(invalid)?;
    index.upsert(key, value).await.map_err(failed)
}

async fn list(
    State(index): State<Index>,
    Path(from): Path<u64>,
) -> Result<String, (StatusCode, String)> {
    let mut records = index.scan(from..).limit(100).stream();
    let mut lines = String::new();
    while let Some(record) = records.next().await {
        let (key, value) = record.map_err(failed)?;
        lines.push_str(&format!("{key},{value}\n"));
    }
    Ok(lines)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let index = match std::env::args().nth(1) {
        Some(folder) => farleaf::connect(folder)?,
        None => Embedded::open(EmbeddedOptions::default())?,
    };
    let routes = Router::new()
        .route("/{key}", get(read).put(write))
        .route("/from/{key}", get(list))
        .with_state(index);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    println!("listening on {}", listener.local_addr()?);
    Ok(axum::serve(listener, routes).await?)
}
