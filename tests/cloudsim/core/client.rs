//! A small HTTP client for tests that write requests by hand.

use bytes::Bytes;
use http::{Method, Request as HttpRequest};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Speaks to one base address.
#[derive(Clone, Debug)]
pub struct Client {
    base: String,
    http: Legacy<HttpConnector, Full<Bytes>>,
    headers: Vec<(String, String)>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: http::HeaderMap,
    /// The body.
    pub body: String,
}

impl Reply {
    /// The body as JSON; null when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Client {
    /// A client of a base address.
    pub fn new(base: &str) -> Self {
        // An automatic retry would hide what the simulator did to the request.
        let http = Legacy::builder(TokioExecutor::new())
            .retry_canceled_requests(false)
            .build_http();
        Self {
            base: base.to_owned(),
            http,
            headers: Vec::new(),
        }
    }

    /// The same with a header on each request.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends a request with a body of a content type ("" for no body).
    pub async fn send(
        &self,
        method: Method,
        target: &str,
        content_type: &str,
        body: &str,
    ) -> anyhow::Result<Reply> {
        let mut request = HttpRequest::builder()
            .method(method)
            .uri(format!("{}{target}", self.base));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if !content_type.is_empty() {
            request = request.header("content-type", content_type);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned())))?;
        let response = self.http.request(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Reply {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }

    /// A request without a body.
    pub async fn call(&self, method: Method, target: &str) -> anyhow::Result<Reply> {
        self.send(method, target, "", "").await
    }

    /// A GET.
    pub async fn get(&self, target: &str) -> anyhow::Result<Reply> {
        self.call(Method::GET, target).await
    }

    /// A request with a body in JSON.
    pub async fn json(&self, method: Method, target: &str, body: Value) -> anyhow::Result<Reply> {
        self.send(method, target, "application/json", &body.to_string())
            .await
    }
}
